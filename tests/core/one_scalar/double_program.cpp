// A program whose unit is promised the loops of double. It has those of float alone, so it is not linked.
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXd ones = Eigen::MatrixXd::Ones(2, 1);
  return attn::attention(ones, ones, ones).out(0, 0) == 1 ? 0 : 1;
}
