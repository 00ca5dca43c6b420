// expect: attn: this tensor is a temporary, which is destroyed at the end of the statement; store it in a variable and
// expect: view that
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
