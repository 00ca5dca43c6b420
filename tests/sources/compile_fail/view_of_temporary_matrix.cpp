// expect: attn: this tensor is a temporary, which is destroyed at the end of the statement; store it in a variable and
// expect: view that
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  const auto v = attn::view(Eigen::MatrixXf(2, 4));
#else
  const Eigen::MatrixXf x(2, 4);
  const auto v = attn::view(x);
#endif
}
