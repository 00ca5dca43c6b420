// expect: attn: lse must be a vector (q_len) or a rank-3 tensor (batch, heads, q_len), as attention() returns it; to
// expect: pass a tensor as a mod, use attn::keep(t) or attn::bias(t)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(6, 4);
#ifdef ATTN_KO
  attn::entropy(x, x, attn::causal());
#else
  attn::entropy(x, x, attn::attention(x, x, x).lse, attn::causal());
#endif
}
