// expect: include_attn_instantiate_h_in_one_unit
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(2, 4);
  return attn::attention(x, x, x).out.size() == 8 ? 0 : 1;
}
