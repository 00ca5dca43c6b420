// expect: attn: each mod is a type of its own, so that ?: cannot choose between two; write if and two calls, or choose
// expect: the numbers of one mod: attn::sliding_window(far, is_causal ? 0 : far)
#include <attn/attn.h>

int main(int arguments, char**) {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  const auto mask = arguments > 1 ? attn::causal() | attn::softcap(50) : attn::Mods<>();
#else
  const auto mask = attn::sliding_window(arguments, 0);
#endif
  attn::attention(x, x, x, mask | attn::softcap(50));
}
