// expect: attn: query, key and value must have the same scalar type (float and 16-bit floats may be mixed); convert
// expect: with .cast<float>() or .cast<double>()
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
