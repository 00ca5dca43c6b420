// expect: attn: the rope of a cache or of a layer is an object, which both have: .rope = attn::Rope({.head_dim = 64})
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::KvCache<float> cache({.head_dim = 8, .rope = {.head_dim = 8}});
#else
  attn::KvCache<float> cache({.head_dim = 8, .rope = attn::Rope({.head_dim = 8})});
#endif
}
