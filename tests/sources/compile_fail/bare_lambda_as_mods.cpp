// expect: attn: this argument must be a mod; wrap a lambda in attn::mask_mod(...) or attn::score_mod(...), and combine
// expect: mods with |
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto parity = [](auto p) { return (p.q - p.kv) % 2 == 0; };
#ifdef ATTN_KO
  attn::attention(x, x, x, parity);
#else
  attn::attention(x, x, x, attn::mask_mod(parity));
#endif
}
