// expect: attn: a PagedKvCache holds any number of sequences; append(sequence, k, v) takes the number that add()
// expect: returned, or several, {a, b}
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> q({2, 1, 1, 8});
  attn::PagedKvCache<float> cache({.pages = 4, .kv_heads = 1, .head_dim = 8});
  const attn::Index a = cache.add(), b = cache.add();
#ifdef ATTN_KO
  cache.append(q, q);
#else
  cache.append({a, b}, q, q);
#endif
}
