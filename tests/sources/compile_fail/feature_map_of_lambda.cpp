// expect: attn: the argument after the value must be a feature map: attn::elu1(), relu(), identity(), favor(features,
// expect: seed), or a lambda wrapped in attn::feature_map(...)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto square = [](auto n) { return n * n; };
#ifdef ATTN_KO
  attn::linear_attention(x, x, x, square);
#else
  attn::linear_attention(x, x, x, attn::feature_map(square));
#endif
}
