// expect: attn: query, key and value must hold float, double, long double or 16-bit floats, not a class such as
// expect: Eigen::AutoDiffScalar or std::complex; pass its values
#include <attn/attn.h>
#include <unsupported/Eigen/AutoDiff>

using Scalar = Eigen::AutoDiffScalar<Eigen::Vector2d>;

int main() {
  const Eigen::Matrix<Scalar, 2, 4> x;
#ifdef ATTN_KO
  attn::attention(x, x, x);
#else
  const Eigen::MatrixXd values = x.unaryExpr([](const Scalar& s) { return s.value(); });
  attn::attention(values, values, values);
#endif
}
