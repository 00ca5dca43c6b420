// expect: attn::for_each_weight_tile: the callback must take a tile
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const Eigen::VectorXf lse(2);
#ifdef ATTN_KO
  attn::for_each_weight_tile(x, x, lse, attn::causal(), [](int row) { (void)row; });
#else
  attn::for_each_weight_tile(x, x, lse, attn::causal(), [](const auto& tile) { (void)tile; });
#endif
}
