// expect: attn: pass the sequence number that add() returned to append() of a PagedKvCache: append(sequence, k, v), or
// expect: append({a, b}, k, v) for several
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
