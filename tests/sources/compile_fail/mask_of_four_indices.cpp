// expect: attn::mask_mod: the lambda must take one argument, a position with p.batch, p.head, p.q and p.kv: [](auto p)
// expect: { return p.kv <= p.q; }
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::mask_mod([](auto, auto, auto q, auto kv) { return kv <= q; });
#else
  attn::mask_mod([](auto p) { return p.kv <= p.q; });
#endif
}
