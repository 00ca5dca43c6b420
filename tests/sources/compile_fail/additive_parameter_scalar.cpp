// expect: attn: parameters of an additive score must hold the scalar type of the query, or floats of 32 and 16 bits
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf q(3, 4), k(5, 4), v(5, 2), weight(8, 4);
#if defined(ATTN_KO)
  const Eigen::VectorXd w(8);
#else
  const Eigen::VectorXf w(8);
#endif
  attn::additive_attention(q, k, v, {weight, weight, w});
}
