// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <vector>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const std::vector<float> added(4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::bias(added));
#else
  attn::attention(x, x, x, attn::bias(attn::TensorView<const float, 2>(added.data(), {2, 2})));
#endif
}
