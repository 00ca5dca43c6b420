// expect: attn: a mask is a mod such as attn::causal() or attn::keep(mask), not an option; pass it before the options:
// expect: attention(q, k, v, attn::keep(mask), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const attn::MultiHeadAttention<float> mha({.embed_dim = 4, .heads = 2});
  const Eigen::MatrixXf x(2, 4);
  const attn::Tensor<bool, 2> mask({1, 2});
#ifdef ATTN_KO
  mha(x, x, x, {.key_padding_mask = mask});
#else
  mha(x, x, x, attn::padding(mask));
#endif
}
