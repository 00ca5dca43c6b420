// expect: attn: the output is a temporary, so the result would be lost; store it in a variable
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::attention_into(attn::Tensor<float, 4>({1, 1, 2, 4}), x, x, x);
#else
  attn::Tensor<float, 4> out({1, 1, 2, 4});
  attn::attention_into(out, x, x, x);
#endif
}
