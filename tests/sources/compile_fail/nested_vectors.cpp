// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  const std::vector<std::vector<float>> x(2, std::vector<float>(4));
  attn::attention(x, x, x);
#else
  const std::vector<float> x(8);
  const auto rows = attn::bhsd(x.data(), 1, 1, 2, 4);
  attn::attention(rows, rows, rows);
#endif
}
