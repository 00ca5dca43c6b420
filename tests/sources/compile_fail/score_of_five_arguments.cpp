// expect: attn::score_mod: the lambda must take a score and a position: [](auto x, auto p) { return x; }, with p.batch,
// expect: p.head, p.q and p.kv
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::score_mod([](auto s, auto, auto, auto i, auto j) { return s - float(i - j); }));
#else
  attn::attention(x, x, x, attn::score_mod([](auto s, auto p) { return s - float(p.q - p.kv); }));
#endif
}
