// expect: attn: pass the whole result of attention(), with out and lse, between the value and the mods:
// expect: attention_backward(grad_out, q, k, v, result, mods, options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto result = attn::attention(x, x, x, attn::causal());
#ifdef ATTN_KO
  attn::attention_backward(x, x, x, x, result.out, result.lse, attn::causal());
#else
  attn::attention_backward(x, x, x, x, result, attn::causal());
#endif
}
