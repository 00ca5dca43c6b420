#include <attn/attn.h>

#include "two_units/units.h"

Column capped(const Column& x, attn::Isa isa) {
  return attn::attention(x, x, x, attn::causal() | attn::softcap(2), {.isa = isa}).out;
}

std::vector<attn::Isa> sets_of_second() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : {attn::Isa::generic, attn::Isa::avx2, attn::Isa::avx512})
    if (attn::available(isa)) sets.push_back(isa);
  return sets;
}

attn::Isa default_of_second() { return attn::default_isa(); }

const void* code_of_second() { return reinterpret_cast<const void*>(&attn::detail::kernel_family<float>); }
