// expect: attn: converting attn::Dual to a plain number loses the derivative; in a mod that is differentiated,
// expect: use auto instead of float or double
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  const auto twice = attn::score_mod([](auto s, auto) { return 2 * static_cast<float>(s); });
#else
  const auto twice = attn::score_mod([](auto s, auto) { return 2 * s; });
#endif
  attn::attention_backward(x, x, x, x, attn::attention(x, x, x, twice), twice);
}
