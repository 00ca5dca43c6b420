// expect: attn: std::vector<bool> stores bits, which cannot be addressed; use attn::Tensor<bool, 1> or
// expect: Eigen::Array<bool, Eigen::Dynamic, 1>
#include <vector>

#include <attn/attn.h>

#ifdef ATTN_KO
using Bools = std::vector<bool>;
#else
using Bools = Eigen::Array<bool, Eigen::Dynamic, 1>;
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  const Bools mask(2);
  attn::attention(x, x, x, attn::keep(mask));
}
