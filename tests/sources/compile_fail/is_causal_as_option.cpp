// expect: attn: a mask is a mod such as attn::causal() or attn::keep(mask), not an option; pass it before the options:
// expect: attention(q, k, v, attn::keep(mask), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, {.is_causal = true});
#else
  attn::attention(x, x, x, attn::causal());
#endif
}
