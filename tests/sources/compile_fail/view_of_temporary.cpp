// expect: attn: this tensor is a temporary, which is destroyed at the end of the statement; store it in a variable and
// expect: view that
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
