// expect: attn::Rope: x must hold float, double, long double or 16-bit floats
#include <attn/rope.h>

int main() {
  Eigen::MatrixXi x(2, 4);
  const attn::Rope rope({.head_dim = 4});
#ifdef ATTN_KO
  rope.rotate(x, 1);
#else
  Eigen::MatrixXf floats = x.cast<float>();
  rope.rotate(floats, 1);
#endif
}
