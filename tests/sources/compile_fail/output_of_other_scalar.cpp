// expect: attn: the output must hold the same scalar type as the query, or floats of 32 and 16 bits
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
