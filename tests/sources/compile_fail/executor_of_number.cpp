// expect: attn: an executor of so many threads is attn::threads(n), made once
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, {.executor = 4});
#else
  attn::attention(x, x, x, {.executor = attn::threads(4)});
#endif
}
