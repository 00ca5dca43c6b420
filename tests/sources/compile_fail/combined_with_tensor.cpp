// expect: attn: a tensor of bool stands in the place of mods: attn::keep(t) keeps the pairs where it is true,
// expect: attn::drop(t) the others
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::Tensor<bool, 2> mask({2, 2});
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal() | mask);
#else
  attn::attention(x, x, x, attn::causal() | attn::keep(mask));
#endif
}
