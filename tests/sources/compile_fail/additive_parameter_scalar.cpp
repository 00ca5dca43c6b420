// expect: attn: the parameters of an additive score must have the scalar type of the query (float and 16-bit floats may
// expect: be mixed); convert with .cast<float>() or .cast<double>()
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
