// expect: attn: each document has its own state; to use a RecurrentState, pass each document as a sequence of the batch
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::RecurrentState<float> state({.features = 4});
#ifdef ATTN_KO
  attn::linear_attention(state, x, x, x, attn::elu1(), attn::causal() | attn::documents({0, 1}));
#else
  attn::linear_attention(state, x, x, x, attn::elu1(), attn::causal());
#endif
}
