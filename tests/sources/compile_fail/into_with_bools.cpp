// expect: attn: query, key and value cannot be tensors of bool; to pass a mask, use attn::keep(t), which keeps pairs
// expect: where t is true, or attn::drop(t)
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  const attn::Tensor<bool, 4> mask({1, 1, 2, 2});
  attn::Tensor<float, 4> out({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::attention_into(out, x, x, x, mask);
#else
  attn::attention_into(out, x, x, x, attn::keep(mask));
#endif
}
