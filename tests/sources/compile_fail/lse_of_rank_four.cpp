// expect: attn: lse must be a vector (q_len) or a rank-3 tensor (batch, heads, q_len), as attention() returns it; to
// expect: pass a tensor as a mod, use attn::keep(t) or attn::bias(t)
#include <attn/attn.h>

#ifdef ATTN_KO
attn::Tensor<float, 4> lse({1, 1, 6, 1});
#else
attn::Tensor<float, 3> lse({1, 1, 6});
#endif

int main() {
  attn::Tensor<float, 4> x({1, 1, 6, 4}), out({1, 1, 6, 4});
  attn::attention_into(out, lse, x, x, x);
}
