// expect: attn: options are passed by name, as in {.scale = 0.5}; sequences of a PagedKvCache are selected with
// expect: cache.view({a, b})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::causal(), {0.5});
#else
  attn::attention(x, x, x, attn::causal(), {.scale = 0.5});
#endif
}
