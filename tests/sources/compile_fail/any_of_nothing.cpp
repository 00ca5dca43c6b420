// expect: attn::any_of, all_of: pass at least one mask
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::any_of();
#else
  attn::any_of(attn::causal());
#endif
}
