// expect: attn: ragged queries have a cache or an attn::KvView behind them, which know how long each sequence is;
// expect: the sequences of a tensor are as long as each other: attention(q, k, v, attn::key_lengths({4, 2}))
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> q({1, 1, 6, 8}), k({2, 1, 4, 8});
  attn::KvCache<float> cache({.batch = 2, .kv_heads = 1, .head_dim = 8});
#ifdef ATTN_KO
  attn::attention(attn::ragged(q, {4, 2}), k, k);
#else
  attn::attention(attn::ragged(q, {4, 2}), cache);
#endif
}
