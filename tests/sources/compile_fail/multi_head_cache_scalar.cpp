// expect: attn: the cache of a MultiHeadAttention<T> must hold T (float and smaller types may be mixed)
#include <attn/attn.h>

int main() {
  const attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  const attn::Tensor<float, 3> x({1, 2, 4});
#ifdef ATTN_KO
  auto cache = layer.make_cache<double>();
#else
  auto cache = layer.make_cache<Eigen::bfloat16>();
#endif
  layer(x, cache);
}
