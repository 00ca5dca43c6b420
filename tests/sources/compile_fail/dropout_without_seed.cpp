// expect: attn: dropout needs a seed, one for each layer and step: attn::dropout(p, seed)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::dropout(0.1));
#else
  attn::attention(x, x, x, attn::dropout(0.1, 1));
#endif
}
