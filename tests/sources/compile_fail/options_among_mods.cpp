// expect: attn: options are not mods; pass them as a separate argument after the mods: attention(q, k, v, mods,
// expect: options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal() | attn::Options{.scale = 0.5});
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
