// expect: attn: a call returns both out and lse; for the output alone, write attn::attention(q, k, v).out
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  Eigen::MatrixXf out = attn::attention(x, x, x);
#else
  Eigen::MatrixXf out = attn::attention(x, x, x).out;
#endif
}
