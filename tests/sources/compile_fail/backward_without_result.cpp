// expect: attn: pass the whole result of attention(), with out and lse, between the value and the mods:
// expect: attention_backward(grad_out, q, k, v, result, mods, options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention_backward(x, x, x, x, attn::causal());
#else
  attn::attention_backward(x, x, x, x, attn::attention(x, x, x, attn::causal()), attn::causal());
#endif
}
