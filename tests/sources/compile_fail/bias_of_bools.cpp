// expect: attn::bias: the tensor holds bool; to keep or drop pairs use attn::keep or attn::drop
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  const attn::Tensor<bool, 2> mask({2, 2});
#else
  const attn::Tensor<float, 2> mask({2, 2});
#endif
  attn::attention(x, x, x, attn::bias(mask));
}
