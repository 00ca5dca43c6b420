// expect: attn: pass the mods in one argument, before the options:
// expect: attention(q, k, v, causal() | softcap(50), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, {.scale = 0.5}, attn::causal());
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
