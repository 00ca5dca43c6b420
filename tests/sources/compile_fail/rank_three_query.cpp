// expect: attn: query, key and value must be matrices (len, dim) or rank-4 tensors (batch, heads, len, dim); for
// expect: (batch, len, dim), pass t.unsqueeze(1)
#include <attn/attn.h>

#ifdef ATTN_KO
const attn::Tensor<float, 3> query({1, 2, 4});
#else
const attn::Tensor<float, 4> query({1, 1, 2, 4});
#endif

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  attn::attention(query, x, x);
}
