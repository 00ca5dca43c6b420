// expect: attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim),
// expect: attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map
#include <vector>

#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  std::vector<float> out(8);
#ifdef ATTN_KO
  attn::attention_into(out, x, x, x);
#else
  attn::attention_into(attn::bhsd(out.data(), 1, 1, 2, 4), x, x, x);
#endif
}
