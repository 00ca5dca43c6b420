// expect: attn: a tensor of bool is not a mod; use attn::keep(t) to keep the pairs where it is true, or attn::drop(t)
// expect: to drop them
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const attn::Tensor<bool, 2> mask({2, 2});
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::any_of(attn::causal(), mask));
#else
  attn::attention(x, x, x, attn::any_of(attn::causal(), attn::keep(mask)));
#endif
}
