// expect: attn: a PagedKvCache holds any number of sequences; attention() takes cache.view({a, b}), and a layer,
// expect: which appends to them, cache.select({a, b})
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> q({1, 2, 1, 8});
  attn::PagedKvCache<float> cache({.pages = 4, .kv_heads = 1, .head_dim = 8});
#ifdef ATTN_KO
  attn::attention(q, cache, attn::causal());
#else
  attn::attention(q, cache.view({cache.add()}), attn::causal());
#endif
}
