// expect: attn: lse must be a vector (q_len) or a rank-3 tensor (batch, heads, q_len), as attention() returns it; to
// expect: pass a tensor as a mod, use attn::keep(t) or attn::bias(t)
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4}), added({1, 1, 2, 2});
  attn::Tensor<float, 4> out({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::attention_into(out, x, x, x, added);
#else
  attn::attention_into(out, x, x, x, attn::bias(added));
#endif
}
