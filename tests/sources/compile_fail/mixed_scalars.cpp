// expect: attn: query, key and value must hold the same scalar type, or floats of 32 and 16 bits; convert with
// expect: .cast<float>() or .cast<double>()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf q(2, 4);
  const Eigen::MatrixXd k(2, 4);
#ifdef ATTN_KO
  attn::attention(q, k, q);
#else
  attn::attention(q, k.cast<float>(), q);
#endif
}
