// expect: attn: this tensor is a temporary, whose memory is gone at the end of the line; give it a name, and view that
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  const auto out = attn::attention(x, x, x).out.view();
#else
  const auto result = attn::attention(x, x, x);
  const auto out = result.out.view();
#endif
}
