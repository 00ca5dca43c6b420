// expect: attn: the output must have the scalar type of the query (float and 16-bit floats may be mixed)
#include <attn/attn.h>

#ifdef ATTN_KO
Eigen::MatrixXd out(2, 4);
#else
Eigen::MatrixXf out(2, 4);
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention_into(out, x, x, x);
}
