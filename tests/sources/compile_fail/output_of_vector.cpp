// expect: attn: this has no shape; see it as a tensor by attn::bhsd(ptr, batch, heads, len, dim)
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
