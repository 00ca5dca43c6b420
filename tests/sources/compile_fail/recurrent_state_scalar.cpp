// expect: attn: the state must have the scalar type of the query (float for 16-bit queries)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXd x(2, 4);
#ifdef ATTN_KO
  attn::RecurrentState<float> state({.features = 4});
#else
  attn::RecurrentState<double> state({.features = 4});
#endif
  attn::linear_attention(state, x, x, x, attn::elu1(), attn::causal());
}
