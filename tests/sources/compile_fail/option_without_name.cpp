// expect: attn: after query, key and value, pass mods, then options by name: attention(q, k, v, causal(), {.scale =
// expect: 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal(), 0.5);
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
