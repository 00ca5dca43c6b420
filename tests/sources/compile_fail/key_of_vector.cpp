// expect: attn: this has no shape; see it as a tensor by attn::bhsd(ptr, batch, heads, len, dim), attn::TensorView<T,
// expect: rank>(ptr, {sizes}) or Eigen::Map
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
