// expect: attn: a layer takes query, key and value; for self-attention, pass mha(x, x, x)
#include <attn/attn.h>

int main() {
  const attn::MultiHeadAttention<float> mha({.embed_dim = 4, .heads = 2});
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  mha(x);
#else
  mha(x, x, x);
#endif
}
