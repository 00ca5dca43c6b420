// expect: attn: only causal(), key_lengths(), documents() and documents_at(offsets) have a recurrent form; with any
// expect: other mod, call attn::attention()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::linear_attention(x, x, x, attn::elu1(), attn::causal() | attn::softcap(50));
#else
  attn::linear_attention(x, x, x, attn::elu1(), attn::causal() | attn::key_lengths({2}));
#endif
}
