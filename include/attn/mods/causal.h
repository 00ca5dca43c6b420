// causal(): no query sees a later key.
#pragma once

#include "attn/mod.h"

namespace attn {

/// Keeps keys at or before the query's own position: kv <= q (Vaswani et al. 2017, section 3.2.3).
///
/// Positions are absolute, so by default the last query sees the last key; {.q_offset = 0} aligns the first ones
/// instead.
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
