// expect: attn: lse must be a vector (q_len) or have rank 3, (batch, heads, q_len)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(6, 4);
#ifdef ATTN_KO
  attn::entropy(x, x, attn::causal());
#else
  attn::entropy(x, x, attn::attention(x, x, x).lse, attn::causal());
#endif
}
