// expect: attn: an element has one index per dimension, as in t(b, h, i, d); t.select(0, b) is a part of a tensor, and
// expect: t.matrix(b, h) a matrix
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  x(0, 0);
#else
  x.matrix(0, 0);
#endif
}
