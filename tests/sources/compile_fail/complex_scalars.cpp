// expect: attn: query, key and value must hold float, double, long double or 16-bit floats, not a class such as
// expect: Eigen::AutoDiffScalar or std::complex; pass its values
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXcf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x);
#else
  attn::attention(x.real(), x.real(), x.real());
#endif
}
