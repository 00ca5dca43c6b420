// expect: attn: pass the mods in one argument, before the options:
// expect: attention(q, k, v, causal() | softcap(50), {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  Eigen::MatrixXf out(2, 4);
  const attn::Options options{.scale = 0.5};
#ifdef ATTN_KO
  attn::attention_into(out, x, x, x, options, attn::causal());
#else
  attn::attention_into(out, x, x, x, attn::causal(), options);
#endif
}
