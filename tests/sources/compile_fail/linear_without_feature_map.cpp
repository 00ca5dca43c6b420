// expect: attn: pass a feature map after the value: linear_attention(q, k, v, attn::elu1(), attn::causal())
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::linear_attention(x, x, x);
#else
  attn::linear_attention(x, x, x, attn::elu1());
#endif
}
