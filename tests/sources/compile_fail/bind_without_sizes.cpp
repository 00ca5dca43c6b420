// expect: attn::bind_mod: the lambda must take the sizes of the call
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::bind_mod([] { return attn::causal(); });
#else
  attn::bind_mod([](const attn::Problem&) { return attn::causal(); });
#endif
}
