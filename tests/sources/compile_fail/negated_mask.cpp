// expect: attn: to negate a mask, use attn::not_(mask)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, !attn::causal());
#else
  attn::attention(x, x, x, attn::not_(attn::causal()));
#endif
}
