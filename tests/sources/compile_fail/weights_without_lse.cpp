// expect: attn: lse must be a vector (q_len) or a rank-3 tensor (batch, heads, q_len), as attention() returns it; to
// expect: pass a tensor as a mod, use attn::keep(t) or attn::bias(t)
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 6, 4});
#ifdef ATTN_KO
  attn::attention_mass(x, x, x);
#else
  attn::attention_mass(x, x, attn::attention(x, x, x).lse);
#endif
}
