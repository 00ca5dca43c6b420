// expect: attn::merge: both parts must have the same scalar type (float and 16-bit floats may be mixed)
#include <attn/attn.h>

#ifdef ATTN_KO
using Other = Eigen::MatrixXd;
#else
using Other = Eigen::MatrixXf;
#endif

int main() {
  Eigen::MatrixXf out(2, 4);
  Eigen::VectorXf lse(2);
  attn::merge_into(out, lse, Other(2, 4), lse);
}
