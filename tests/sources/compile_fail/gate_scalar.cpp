// expect: attn: gates and betas must hold the scalar type that is computed in: that of the query, float for those of
// 16 bits
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  const Eigen::VectorXd gate(2);
#else
  const Eigen::VectorXf gate(2);
#endif
  attn::gated_attention(x, x, x, gate);
}
