// expect: attn::Rope: the tensor to write (out, or x if rotated in place) must not be const
#include <attn/rope.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::Rope rope({.head_dim = 4});
#ifdef ATTN_KO
  rope.rotate(x, 1);
#else
  Eigen::MatrixXf y(2, 4);
  rope.rotate_into(y, x, 1);
#endif
}
