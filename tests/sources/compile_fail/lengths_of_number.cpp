// expect: attn: this argument must be a list with one number per sequence, head or token; write {2} for a list of one
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::key_lengths(2));
#else
  attn::attention(x, x, x, attn::key_lengths({2}));
#endif
}
