// A program that expects precompiled loops for double. The library has them for float only, so linking fails.
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXd ones = Eigen::MatrixXd::Ones(2, 1);
  return attn::attention(ones, ones, ones).out(0, 0) == 1 ? 0 : 1;
}
