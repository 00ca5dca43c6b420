// expect: attn: query, key and value must hold floating-point numbers; convert with .cast<float>()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXi x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x);
#else
  attn::attention(x.cast<float>(), x.cast<float>(), x.cast<float>());
#endif
}
