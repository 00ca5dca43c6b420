// expect: attn: four sizes follow the pointer, bhsd(ptr, batch, heads, len, dim) or bshd(ptr, batch, len, heads,
// expect: dim); without heads, heads is 1
#include <attn/attn.h>

int main() {
  const float x[8] = {};
#ifdef ATTN_KO
  attn::bhsd(x, 1, 2, 4);
#else
  attn::bhsd(x, 1, 1, 2, 4);
#endif
}
