// causal(): each query sees the keys up to its own position.
#pragma once

#include "attn/mod.h"

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
  return mask_mod([](const Position& p) { return p.kv <= p.q; },
                  [](const Tile& t) {
                    if (t.kv.begin > t.q.end - 1) return Coverage::none;
                    return t.kv.end - 1 <= t.q.begin ? Coverage::all : Coverage::some;
                  },
                  [](const Tile& t) {
                    return Range{t.kv.begin, t.q.end};
                  });
}

}  // namespace attn
