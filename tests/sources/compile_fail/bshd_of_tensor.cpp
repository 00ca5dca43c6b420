// expect: attn: bhsd() and bshd() take a pointer to the first element: x.data(), not x
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::bshd(x);
#else
  attn::bshd(x.data(), 1, 2, 1, 4);
#endif
}
