// expect: attn::score_mod: the lambda must take a score and a position: [](auto x, auto p) { return x; }, with
// expect: p.batch, p.head, p.q and p.kv
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::score_mod([](auto& score, auto) { return score *= 2; }));
#else
  attn::attention(x, x, x, attn::score_mod([](auto score, auto) { return score * 2; }));
#endif
}
