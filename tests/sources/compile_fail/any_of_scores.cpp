// expect: attn::any_of, all_of, not_: the arguments must be masks; add score mods and sinks with |
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::any_of(attn::causal(), attn::softcap(2)));
#else
  attn::attention(x, x, x, attn::any_of(attn::causal()) | attn::softcap(2));
#endif
}
