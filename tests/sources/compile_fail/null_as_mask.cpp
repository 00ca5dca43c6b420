// expect: attn: for attention without a mask, omit the argument: attention(q, k, v)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, nullptr);
#else
  attn::attention(x, x, x);
#endif
}
