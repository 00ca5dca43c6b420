// expect: attn: lse must be writable and hold the scalar type of the query, float for those of 16 bits; it stands
// expect: behind out: attention_into(out, lse, q, k, v)
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
