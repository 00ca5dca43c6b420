// expect: attn: this argument must be an Eigen matrix or expression, an Eigen tensor, an attn::Tensor, an
#include <optional>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const std::optional<Eigen::MatrixXf> key(x);
#ifdef ATTN_KO
  attn::attention(x, key, x);
#else
  attn::attention(x, *key, x);
#endif
}
