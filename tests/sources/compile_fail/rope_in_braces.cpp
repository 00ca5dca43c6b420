// expect: attn: the rope option of a cache or layer is an attn::Rope object: write .rope = attn::Rope({.head_dim = 64})
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::KvCache<float> cache({.head_dim = 8, .rope = {.head_dim = 8}});
#else
  attn::KvCache<float> cache({.head_dim = 8, .rope = attn::Rope({.head_dim = 8})});
#endif
}
