// expect: attn: the rope option of a cache or layer is an attn::Rope object: write .rope = attn::Rope({.head_dim = 64})
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4, .rope = {.head_dim = 8}});
#else
  attn::KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4, .rope = attn::Rope({.head_dim = 8})});
#endif
}
