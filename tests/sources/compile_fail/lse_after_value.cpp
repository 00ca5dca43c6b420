// expect: attn: lse must be writable and have the scalar type of the query (float for 16-bit queries); pass it after
// expect: out: attention_into(out, lse, q, k, v)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  Eigen::MatrixXf out(2, 4);
  Eigen::VectorXf lse(2);
#ifdef ATTN_KO
  attn::attention_into(out, x, x, x, lse);
#else
  attn::attention_into(out, lse, x, x, x);
#endif
}
