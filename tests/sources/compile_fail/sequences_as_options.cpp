// expect: attn: options are passed by name, as in {.scale = 0.5}; sequences of a PagedKvCache are selected with
// expect: cache.view({a, b})
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> q({2, 1, 1, 8});
  attn::PagedKvCache<float> cache({.pages = 4, .kv_heads = 1, .head_dim = 8});
  const attn::Index a = cache.add(), b = cache.add();
#ifdef ATTN_KO
  attn::attention(q, cache.view({a, b}), attn::causal(), {a, b});
#else
  attn::attention(q, cache.view({a, b}), attn::causal(), {.q_offsets = {a, b}});
#endif
}
