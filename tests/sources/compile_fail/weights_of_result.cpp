// expect: attn: this is the whole result of a call; pass its log-sum-exps, result.lse
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(6, 4);
  const auto result = attn::attention(x, x, x, attn::causal());
#ifdef ATTN_KO
  attn::attention_mass(x, x, result, attn::causal());
#else
  attn::attention_mass(x, x, result.lse, attn::causal());
#endif
}
