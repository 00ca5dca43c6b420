// expect: attn: this is the whole result of a call; pass its output, result.out
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto first = attn::attention(x, x, x);
#ifdef ATTN_KO
  attn::attention(first, x, x);
#else
  attn::attention(first.out, x, x);
#endif
}
