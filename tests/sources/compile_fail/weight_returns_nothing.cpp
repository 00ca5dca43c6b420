// expect: attn::weight_mod: the lambda must return the new weight, a floating-point number; to drop pairs use
// expect: attn::mask_mod
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::weight_mod([](auto weight, auto) { weight *= weight; }));
#else
  attn::attention(x, x, x, attn::weight_mod([](auto weight, auto) { return weight * weight; }));
#endif
}
