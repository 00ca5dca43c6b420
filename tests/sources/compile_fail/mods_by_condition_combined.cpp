// expect: attn: each mod has its own type, so ?: cannot choose between two; use if and two calls, or choose the
// expect: arguments of one mod: attn::sliding_window(far, is_causal ? 0 : far)
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
