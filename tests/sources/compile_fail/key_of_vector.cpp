// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <vector>

#include <attn/attn.h>

#ifdef ATTN_KO
const std::vector<float> key(8);
#else
const Eigen::MatrixXf key(2, 4);
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, key, x);
}
