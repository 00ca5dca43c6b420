// expect: attn: a tensor of numbers is not a mod; use attn::bias(t) to add it to the scores, or a tensor of bool as a
// expect: mask
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4}), added({1, 1, 2, 2});
#ifdef ATTN_KO
  attn::naive_attention(x, x, x, added);
#else
  attn::naive_attention(x, x, x, attn::bias(added));
#endif
}
