// expect: attn: ragged queries need a cache or an attn::KvView, which knows the length of each sequence; with key and
// expect: value tensors, pad the sequences: attention(q, k, v, attn::key_lengths({4, 2}))
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
