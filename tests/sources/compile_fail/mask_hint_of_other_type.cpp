// expect: attn::mask_mod: the coverage hint must be callable as attn::Coverage(const attn::Tile&)
#include <attn/attn.h>

#ifdef ATTN_KO
const auto hint = [](const attn::Tile&) { return true; };
#else
const auto hint = [](const attn::Tile&) { return attn::Coverage::all; };
#endif

int main() {
  attn::mask_mod([](auto) { return true; }, hint);
}
