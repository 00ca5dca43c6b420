// expect: attn: causal attention is a mod: attention(q, k, v, attn::causal())
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, true);
#else
  attn::attention(x, x, x, attn::causal());
#endif
}
