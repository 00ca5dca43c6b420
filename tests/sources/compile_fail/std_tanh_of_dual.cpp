// expect: attn: a mod that is differentiated must call tanh(x) without std::, so that the overload for attn::Dual
// expect: is found
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto bend = attn::score_mod([](auto s, auto) {
#ifdef ATTN_KO
    return 2 * std::tanh(s);
#else
    return 2 * tanh(s);
#endif
  });
  attn::attention_backward(x, x, x, x, attn::attention(x, x, x, bend), bend);
}
