// expect: attn: the output is an Eigen expression that is not stored in memory; pass a matrix, a map or a block of one
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  Eigen::MatrixXf out(2, 8);
#ifdef ATTN_KO
  attn::attention_into(2 * out.leftCols(4), x, x, x);
#else
  attn::attention_into(out.leftCols(4), x, x, x);
#endif
}
