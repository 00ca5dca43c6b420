// expect: attn: pass four sizes, bhsd(ptr, batch, heads, len, dim) or bshd(ptr, batch, len, heads, dim); for a single
// expect: head, heads is 1
#include <attn/attn.h>

int main() {
  const float x[8] = {};
#ifdef ATTN_KO
  attn::bhsd(x, 1, 2, 4);
#else
  attn::bhsd(x, 1, 1, 2, 4);
#endif
}
