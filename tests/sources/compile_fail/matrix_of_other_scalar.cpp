// expect: attn: this matrix has another scalar type than the tensor; write t.matrix().cast<double>()
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 2> t({2, 4});
#ifdef ATTN_KO
  const Eigen::MatrixXd m = t;
#else
  const Eigen::MatrixXd m = t.matrix().cast<double>();
#endif
  return static_cast<int>(m.size());
}
