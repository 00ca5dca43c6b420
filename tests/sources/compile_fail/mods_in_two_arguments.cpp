// expect: attn: combine several mods into one argument with |: attention(q, k, v, causal() | softcap(50))
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal(), attn::softcap(50));
#else
  attn::attention(x, x, x, attn::causal() | attn::softcap(50));
#endif
}
