// expect: attn: append keys and values to the cache before the call: cache.append(k, v), then attention(q, cache)
#include <attn/attn.h>

int main() {
  attn::KvCache<float> cache({.head_dim = 4});
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::attention(x, cache, x, x);
#else
  cache.append(x, x);
  attn::attention(x, cache);
#endif
}
