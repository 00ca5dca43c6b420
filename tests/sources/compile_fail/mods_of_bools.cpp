// expect: attn: a tensor of bool stands in the place of mods: attn::keep(t) keeps the pairs where it is true,
// expect: attn::drop(t) the others
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
