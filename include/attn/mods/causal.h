// causal(): each query sees the keys up to its own position.
#pragma once

#include "attn/core/mods/hints.h"

namespace attn {

/// Keeps keys at or before the query's own position: kv <= q (Vaswani et al. 2017, section 3.2.3).
///
/// Positions are absolute. By default the last query is aligned with the last key; {.q_offset = 0} aligns the first
/// query with the first key.
///
///     3 queries, 3 keys   2 queries, 4 keys   the same, q_offset = 0   4 queries, 2 keys
///          1 0 0              1 1 1 0                1 0 0 0                 0 0
///          1 1 0              1 1 1 1                1 1 0 0                 0 0
///          1 1 1                                                             1 0
///                                                                            1 1
inline auto causal() {
  return detail::keep_ranges([](const Position& p) { return Range{detail::kFirstKey, p.q + 1}; });
}

}  // namespace attn
