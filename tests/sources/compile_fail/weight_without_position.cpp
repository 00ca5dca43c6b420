// expect: attn::weight_mod: the lambda must take a weight and a position: [](auto w, auto p) { return w; }, with
// expect: p.batch, p.head, p.q and p.kv
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::weight_mod([](auto weight) { return weight * weight; }));
#else
  attn::attention(x, x, x, attn::weight_mod([](auto weight, auto) { return weight * weight; }));
#endif
}
