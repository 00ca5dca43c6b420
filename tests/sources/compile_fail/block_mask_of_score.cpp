// expect: attn::block_mask: the argument must be a mask
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::block_mask(attn::softcap(2), 4, 4);
#else
  attn::block_mask(attn::causal(), 4, 4);
#endif
}
