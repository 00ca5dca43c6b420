// expect: attn: mods are combined by a single |, as in attn::causal() | attn::softcap(50); attn::any_of(a, b) keeps
// expect: what one of two masks keeps
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal() || attn::softcap(50));
#else
  attn::attention(x, x, x, attn::causal() | attn::softcap(50));
#endif
}
