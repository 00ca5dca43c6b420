// expect: attn: a tensor of rank 3 or 4 is not a matrix; write t.matrix(i) or t.matrix(i, j) for its last two
// expect: dimensions at these indices
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> t({1, 1, 2, 4});
#ifdef ATTN_KO
  const Eigen::MatrixXf m = t;
#else
  const Eigen::MatrixXf m = t.matrix(0, 0);
#endif
  return static_cast<int>(m.size());
}
