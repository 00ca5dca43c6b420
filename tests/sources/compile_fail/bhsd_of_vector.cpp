// expect: attn: bhsd() and bshd() take a pointer to the first element: x.data(), not x
#include <vector>

#include <attn/attn.h>

int main() {
  const std::vector<float> x(8);
#ifdef ATTN_KO
  attn::bhsd(x, 1, 1, 2, 4);
#else
  attn::bhsd(x.data(), 1, 1, 2, 4);
#endif
}
