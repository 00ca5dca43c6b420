// expect: attn: a mask is no option but a mod, which stands before them: attention(q, k, v, attn::keep(mask),
// expect: {.scale = 0.5}), or attn::causal() and the like
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
