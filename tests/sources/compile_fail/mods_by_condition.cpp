// expect: attn: each mod has its own type, so ?: cannot choose between two; use if and two calls, or choose the
// expect: arguments of one mod: attn::sliding_window(far, is_causal ? 0 : far)
#include <limits>

#include <attn/attn.h>

int main(int arguments, char**) {
  const Eigen::MatrixXf x(2, 4);
  const bool is_causal = arguments > 1;
#ifdef ATTN_KO
  attn::attention(x, x, x, is_causal ? attn::causal() : attn::full());
#else
  const attn::Index far = std::numeric_limits<attn::Index>::max();
  attn::attention(x, x, x, attn::sliding_window(far, is_causal ? 0 : far));
#endif
}
