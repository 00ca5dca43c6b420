// expect: attn: query, key and value of MultiHeadAttention must be matrices (len, features) or rank-3 tensors
#include <attn/attn.h>

#ifdef ATTN_KO
const attn::Tensor<float, 4> x({1, 2, 2, 4});
#else
const attn::Tensor<float, 3> x({1, 2, 4});
#endif

int main() {
  const attn::MultiHeadAttention<float> layer({.embed_dim = 4, .heads = 2});
  layer(x, x, x);
}
