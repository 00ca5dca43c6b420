// expect: attn: this is a function that returns a mod; call it, as in attn::causal()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal | attn::softcap(50));
#else
  attn::attention(x, x, x, attn::causal() | attn::softcap(50));
#endif
}
