// expect: attn: this argument must be an Eigen matrix or expression, an Eigen tensor, an attn::Tensor or an
#include <vector>

#include <attn/attn.h>

#ifdef ATTN_KO
const std::vector<float> key(8);
#else
const Eigen::MatrixXf key(2, 4);
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, key, x);
}
