// expect: attn: a mask is no option but a mod, which stands before them: attention(q, k, v, attn::keep(mask),
// expect: {.scale = 0.5}), or attn::causal() and the like
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::Tensor<bool, 2> mask({2, 2});
#ifdef ATTN_KO
  attn::attention(x, x, x, {.mask = mask});
#else
  attn::attention(x, x, x, attn::keep(mask));
#endif
}
