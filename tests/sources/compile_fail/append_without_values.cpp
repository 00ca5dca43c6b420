// expect: attn: pass keys and values to append(): cache.append(k, v)
#include <attn/attn.h>

int main() {
  attn::KvCache<float> cache({.head_dim = 4});
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  cache.append(x);
#else
  cache.append(x, x);
#endif
}
