// expect: attn: options are passed by name: attention(q, k, v, {.scale = 0.5})
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, 0.5);
#else
  attn::attention(x, x, x, {.scale = 0.5});
#endif
}
