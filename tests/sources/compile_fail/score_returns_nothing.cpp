// expect: attn::score_mod: the lambda must return the new score, a floating-point number; to drop pairs use
// expect: attn::mask_mod
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::score_mod([](auto score, auto) { score *= 2; }));
#else
  attn::attention(x, x, x, attn::score_mod([](auto score, auto) { return score * 2; }));
#endif
}
