// The masks that group tokens, each with its meaning written out by hand.
#pragma once

#include <limits>
#include <sstream>

#include "attn/mods.h"
#include "row.h"

namespace attn::test {

inline std::string numbers_text(Index a, Index b) {
  std::ostringstream text;  // g++ 12 warns of an overlap inside of "(" + std::string
  text << '(' << a << ", " << b << ')';
  return text.str();
}

/// Groups tokens always, or where it pays, which at the sizes of most tests is nowhere.
template <class M>
M some_always(M mod, const Setting& s) {
  mod.grouping.always = s.random.chance(0.8);
  return mod;
}

inline auto strided_rows(const Setting& s) {
  const Index stride = s.random.pick(std::vector<Index>{1, 2, 3, 7, 20, 100});
  return Rows<decltype(attn::strided_sparse(1))>{
      {"strided_sparse(" + std::to_string(stride) + ")",
       some_always(attn::strided_sparse(stride), s),
       {[=](const Pair& p) { return p.kv <= p.q && (p.kv >= p.q - stride || (p.q - p.kv) % stride == 0); }, {}}}};
}

inline auto fixed_rows(const Setting& s) {
  const Index block = s.random.pick(std::vector<Index>{1, 2, 5, 16, 40}), summary = s.random.integer(0, block);
  return Rows<decltype(attn::fixed_sparse(1, 0))>{{"fixed_sparse" + numbers_text(block, summary),
                                                   some_always(attn::fixed_sparse(block, summary), s),
                                                   {[=](const Pair& p) {
                                                      if (p.kv > p.q) return false;
                                                      const Index block_begin = p.q - p.q % block;
                                                      return p.kv >= block_begin || p.kv % block >= block - summary;
                                                    },
                                                    {}}}};
}

inline auto dilated_rows(const Setting& s) {
  const Index left = s.random.integer(0, 4), right = s.random.integer(0, 3),
              gap = s.random.pick(std::vector<Index>{1, 2, 3, 10, std::numeric_limits<Index>::max()});
  return Rows<decltype(attn::dilated(1, 1))>{{"dilated" + numbers_text(left, gap) + numbers_text(right, 0),
                                              some_always(attn::dilated(left, gap, right), s),
                                              {[=](const Pair& p) {
                                                 for (Index i = -right; i <= left; ++i)
                                                   if (i == 0 ? p.q == p.kv : gap < 1000 && p.q - p.kv == i * gap)
                                                     return true;
                                                 return false;
                                               },
                                               {}}}};
}

}  // namespace attn::test
