// expect: attn: an executor is not a number of threads; create one with attn::threads(n) and reuse it
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, {.executor = 4});
#else
  attn::attention(x, x, x, {.executor = attn::threads(4)});
#endif
}
