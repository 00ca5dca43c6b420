// expect: attn: dropout is a mod, not an option: attention(q, k, v, attn::dropout(p, seed))
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal(), {.dropout_p = 0.1});
#else
  attn::attention(x, x, x, attn::causal() | attn::dropout(0.1, 1));
#endif
}
