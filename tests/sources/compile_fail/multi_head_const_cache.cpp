// expect: attn: a layer appends to its cache, which must be a non-const KvCache, cache.select({a, b}) of a
// expect: PagedKvCache, or step.layer(l) of KvCaches; to only read a cache, call attend(x, cache)
#include <attn/attn.h>

int main() {
  const attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  const auto cache = layer.make_cache();
  const attn::Tensor<float, 3> x({1, 2, 4});
#ifdef ATTN_KO
  layer(x, cache);
#else
  layer.attend(x, cache);
#endif
}
