// expect: attn: the output must be writable, but this one is const; pass the output first: attention_into(out, q, k, v)
#include <attn/attn.h>

#ifdef ATTN_KO
const attn::Tensor<float, 4> out({1, 1, 2, 4});
#else
attn::Tensor<float, 4> out({1, 1, 2, 4});
#endif

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  attn::attention_into(out, x, x, x);
}
