// expect: attn: a tensor of numbers stands in the place of mods: attn::bias(t) adds it to the scores; a mask must hold
// expect: bool
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4}), added({1, 1, 2, 2});
#ifdef ATTN_KO
  attn::naive_attention(x, x, x, added);
#else
  attn::naive_attention(x, x, x, attn::bias(added));
#endif
}
