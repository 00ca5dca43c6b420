// expect: attn: a tensor of bool is not a mod; use attn::keep(t) to keep the pairs where it is true, or attn::drop(t)
// expect: to drop them
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  const attn::Tensor<bool, 2> mask({2, 2});
  attn::KvCache<float> cache({.head_dim = 4});
  cache.append(x, x);
#ifdef ATTN_KO
  attn::attention(x, cache, mask);
#else
  attn::attention(x, cache, attn::keep(mask));
#endif
}
