// expect: attn: a cache holds both keys and values; pass it once: attention(q, cache, mods, options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::KvCache<float> cache({.head_dim = 4});
#ifdef ATTN_KO
  attn::attention(x, cache, cache);
#else
  attn::attention(x, cache);
#endif
}
