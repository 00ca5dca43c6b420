// expect: attn: pass the whole result of attention(), with out and lse, between the value and the mods:
// expect: attention_backward(grad_out, q, k, v, result, mods, options)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  Eigen::MatrixXf grad_q(2, 4), grad_k(2, 4), grad_v(2, 4);
#ifdef ATTN_KO
  attn::attention_backward_into(grad_q, grad_k, grad_v, x, x, x, x, attn::causal());
#else
  const auto result = attn::attention(x, x, x, attn::causal());
  attn::attention_backward_into(grad_q, grad_k, grad_v, x, x, x, x, result, attn::causal());
#endif
}
