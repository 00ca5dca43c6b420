// expect: attn: attention_jvp() does not support weight_mod(); use attn::attention_backward()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(3, 4);
  const auto mod = attn::weight_mod([](auto weight, auto) { return weight * weight; });
#ifdef ATTN_KO
  attn::attention_jvp(x, x, x, x, x, x, mod);
#else
  attn::attention_backward(x, x, x, x, attn::attention(x, x, x, mod), mod);
#endif
}
