// expect: attn: this has no shape; see it as a tensor by attn::bhsd(ptr, batch, heads, len, dim), attn::TensorView<T,
// expect: rank>(ptr, {sizes}) or Eigen::Map
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
