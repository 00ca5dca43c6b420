// expect: attn: options are an argument behind the mods, not one of them: attention(q, k, v, mods, options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal() | attn::Options{.scale = 0.5});
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
