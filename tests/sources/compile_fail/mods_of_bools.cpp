// expect: attn: a tensor of bool is not a mod; use attn::keep(t) to keep the pairs where it is true, or attn::drop(t)
// expect: to drop them
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const Eigen::Array<bool, 2, 2> mask;
#ifdef ATTN_KO
  attn::attention(x, x, x, mask);
#else
  attn::attention(x, x, x, attn::keep(mask));
#endif
}
