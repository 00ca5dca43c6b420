// expect: attn: a score mod whose gradient is wanted must write tanh(x), without std:: before it: then the function
// expect: for attn::Dual is found too
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
