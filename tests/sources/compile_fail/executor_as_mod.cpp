// expect: attn: an executor is an option: attention(q, k, v, {.executor = attn::threads(4)})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::threads(4));
#else
  attn::attention(x, x, x, {.executor = attn::threads(4)});
#endif
}
