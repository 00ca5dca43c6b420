// expect: attn: query_weight and key_weight must be matrices (hidden, features) or rank-3 tensors (heads, hidden,
// expect: features); score_weight and bias must be vectors (hidden) or matrices (heads, hidden)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf q(3, 4), k(5, 4), v(5, 2), weight(8, 4);
  const Eigen::VectorXf w(8);
#if defined(ATTN_KO)
  attn::additive_attention(q, k, v, {weight, w, w});
#else
  attn::additive_attention(q, k, v, {weight, weight, w});
#endif
}
