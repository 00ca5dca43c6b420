// expect: attn: the gradient of a parameter must be writable and have the scalar type of the query (float for 16-bit
// expect: queries)
#include <attn/attn.h>

int main() {
#if defined(ATTN_KO)
  const Eigen::VectorXf grad(8);
#else
  Eigen::VectorXf grad(8);
#endif
  const attn::AdditiveScoreGradients<float> grads{.score_weight = grad};
  return grads.score_weight.is_given();
}
