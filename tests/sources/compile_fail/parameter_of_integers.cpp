// expect: attn: parameters must be loaded from floating-point numbers; convert with .cast<float>()
#include <attn/attn.h>

int main() {
  attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  const Eigen::VectorXi bias(4);
#ifdef ATTN_KO
  layer.load("out_proj.bias", bias);
#else
  layer.load("out_proj.bias", bias.cast<float>().eval());
#endif
}
