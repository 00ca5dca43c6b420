// expect: attn::keep / attn::drop: the tensor must hold bool; for additive masks use attn::bias
#include <attn/attn.h>

#ifdef ATTN_KO
using Element = float;
#else
using Element = bool;
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, x, x, attn::keep(attn::Tensor<Element, 2>({2, 2})));
}
