// expect: attn: combine mods with a single |, as in attn::causal() | attn::softcap(50); for the union of two masks, use
// expect: attn::any_of(a, b)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal() + attn::softcap(50));
#else
  attn::attention(x, x, x, attn::causal() | attn::softcap(50));
#endif
}
