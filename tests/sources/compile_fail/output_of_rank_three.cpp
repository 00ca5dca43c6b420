// expect: attn: the output must be a matrix (len, dim) or a rank-4 tensor (batch, heads, len, dim)
#include <attn/attn.h>

#ifdef ATTN_KO
attn::Tensor<float, 3> out({1, 2, 4});
#else
attn::Tensor<float, 4> out({1, 1, 2, 4});
#endif

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  attn::attention_into(out, x, x, x);
}
