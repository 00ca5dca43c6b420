// expect: attn: query, key and value must have the scalar type T of MultiHeadAttention<T>; convert with .cast<float>()
// expect: or .cast<double>()
#include <attn/attn.h>

int main() {
  const attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  const Eigen::MatrixXd x(2, 4);
#ifdef ATTN_KO
  layer(x, x, x);
#else
  layer(x.cast<float>(), x.cast<float>(), x.cast<float>());
#endif
}
