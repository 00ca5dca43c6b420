// expect: attn: this tensor is a temporary, whose memory is gone at the end of the line; give it a name, and view that
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  const auto last = attn::attention(x, x, x).out.slice(2, 1, 2);
#else
  const auto result = attn::attention(x, x, x);
  const auto last = result.out.slice(2, 1, 2);
#endif
}
