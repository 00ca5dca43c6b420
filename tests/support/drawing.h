// Renders masks as text.
#pragma once

#include <string>

#include "bound.h"

namespace attn::test {

/// Draws a mask: a line per query, with `kept` or `dropped` per key. The last query is at the position of the last key.
template <class M>
std::string drawing(const M& mod, Index q_len, Index kv_len, const char* kept, const char* dropped, const char* end) {
  Problem problem;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.q_offset = kv_len - q_len;
  const auto mask = bound(mod, problem);
  std::string s;
  for (Index i = 0; i < q_len; ++i, s += end)
    for (Index j = 0; j < kv_len; ++j) s += mask.keep(Position{0, 0, problem.q_offset + i, j}) ? kept : dropped;
  return s;
}

}  // namespace attn::test
