// expect: attn: behind query, key and value stand mods and then options, which have names: attention(q, k, v,
// expect: causal(), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal(), 0.5);
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
