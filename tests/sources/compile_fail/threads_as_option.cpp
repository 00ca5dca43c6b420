// expect: attn: the number of threads belongs to an executor: {.executor = attn::threads(n)}; create it once and reuse
// expect: it
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, {.threads = 4});
#else
  attn::attention(x, x, x, {.executor = attn::threads(4)});
#endif
}
