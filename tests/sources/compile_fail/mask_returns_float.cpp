// expect: attn::mask_mod: the lambda must return bool (true = keep); to add to a score use attn::score_mod
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::mask_mod([](auto p) { return p.kv <= p.q ? 0.f : -1e9f; }));
#else
  attn::attention(x, x, x, attn::mask_mod([](auto p) { return p.kv <= p.q; }));
#endif
}
