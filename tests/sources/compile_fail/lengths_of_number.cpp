// expect: attn: here stands a list, with a number for each sequence, head or token; a list of one is {2}
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::key_lengths(2));
#else
  attn::attention(x, x, x, attn::key_lengths({2}));
#endif
}
