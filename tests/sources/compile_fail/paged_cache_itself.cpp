// expect: attn: select the sequences of a PagedKvCache: pass cache.view({a, b}) to attention(), or cache.select({a, b})
// expect: to a layer, which appends to them
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
