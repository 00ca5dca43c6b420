// expect: attn: pass the gradient of out, and the result of attention(): attention_backward(grad_out, q, k, v, result)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto r = attn::attention(x, x, x);
#ifdef ATTN_KO
  attn::attention_backward(x, x, x, r);
#else
  attn::attention_backward(x, x, x, x, r);
#endif
}
