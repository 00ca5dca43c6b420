// expect: attn::mask_mod: the lambda must take one argument, a position
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::mask_mod([] { return true; }));
#else
  attn::attention(x, x, x, attn::mask_mod([](auto) { return true; }));
#endif
}
