// expect: attn: the bias of a linear map must have the scalar type of the weight; convert a copy, as in
// expect: bias.cast<float>().eval()
#include <attn/attn.h>

int main() {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix x = Matrix::Ones(2, 4), weight = Matrix::Ones(3, 4);
  const Eigen::VectorXd bias = Eigen::VectorXd::Ones(3);
  Matrix y(2, 3);
#ifdef ATTN_KO
  attn::linear_into(y, x, weight, bias);
#else
  attn::linear_into(y, x, weight, bias.cast<float>().eval());
#endif
}
