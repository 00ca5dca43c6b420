// expect: attn::padding / attn::keep_keys: the tensor must hold bool; compare its elements first, e.g. (tokens.array()
// expect: == pad).eval()
#include <attn/attn.h>

#ifdef ATTN_KO
using Element = float;
#else
using Element = bool;
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, x, x, attn::padding(attn::Tensor<Element, 2>({1, 2})));
}
