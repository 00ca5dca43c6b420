// expect: attn::view: this Eigen expression is not stored in memory; evaluate it first, e.g. with .eval()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::view(x + x);
#else
  const Eigen::MatrixXf sum = x + x;
  attn::view(sum);
#endif
}
