// expect: attn: a mask is a mod such as attn::causal() or attn::keep(mask), not an option; pass it before the options:
// expect: attention(q, k, v, attn::keep(mask), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::MultiHeadAttention<float> mha({.embed_dim = 4, .heads = 1});
#ifdef ATTN_KO
  mha(x, x, x, {.mask = attn::causal()});
#else
  mha(x, x, x, attn::causal());
#endif
}
