// expect: attn: grad_out must have the scalar type T of MultiHeadAttention<T>; convert with .cast<float>() or
// expect: .cast<double>()
#include <attn/attn.h>

int main() {
  attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  const Eigen::MatrixXf x(2, 4);
  const Eigen::MatrixXd grad(2, 4);
  const auto kept = layer(x, x, x, {.keep = true});
#ifdef ATTN_KO
  layer.backward(grad, x, x, x, kept);
#else
  layer.backward(grad.cast<float>(), x, x, x, kept);
#endif
}
