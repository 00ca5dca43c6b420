// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <vector>

#include <attn/attn.h>

int main() {
  const std::vector<float> x(8);
#ifdef ATTN_KO
  attn::view(x);
#else
  attn::bhsd(x.data(), 1, 1, 2, 4);
#endif
}
