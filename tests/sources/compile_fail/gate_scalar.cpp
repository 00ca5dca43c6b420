// expect: attn: gates and betas must have the scalar type of the query (float for 16-bit queries)
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
