// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  const float* const query = x.data();
#ifdef ATTN_KO
  attn::attention(query, x, x);
#else
  attn::attention(attn::bhsd(query, 1, 1, 2, 4), x, x);
#endif
}
