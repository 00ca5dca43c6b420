// expect: attn: this argument must be a mod; wrap a lambda in attn::mask_mod(...) or attn::score_mod(...), and combine
// expect: mods with |
#include <attn/attn.h>

int main() {
  const auto even = [](auto p) { return p.kv % 2 == 0; };
#ifdef ATTN_KO
  attn::any_of(even, attn::causal());
#else
  attn::any_of(attn::mask_mod(even), attn::causal());
#endif
}
