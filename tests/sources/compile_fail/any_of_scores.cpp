// expect: attn::any_of, all_of, not_: only masks can be combined so; put changes of scores and sinks beside them with
// expect: |
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::any_of(attn::causal(), attn::softcap(2)));
#else
  attn::attention(x, x, x, attn::any_of(attn::causal()) | attn::softcap(2));
#endif
}
