// Layer 2: sliding_window(), each query sees the keys around it.
#pragma once

#include <limits>

#include "attn/detail/check.h"
#include "attn/mod.h"

namespace attn {

/// Keeps keys q - left .. q + right, both ends included (Child et al. 2019; Beltagy et al. 2020). `right` = 0 makes it
/// causal.
///
///     left 1, right 0    left 1, right 1
///         1 0 0 0            1 1 0 0
///         1 1 0 0            1 1 1 0
///         0 1 1 0            0 1 1 1
///         0 0 1 1            0 0 1 1
///
/// @throws std::invalid_argument for a negative side.
inline auto sliding_window(Index left, Index right = 0) {
  detail::require(left >= 0 && right >= 0, "sliding_window(", left, ", ", right, "): neither side may be negative");
  constexpr Index kUnbounded =
      std::numeric_limits<Index>::max() / 4;  // longer than any sequence, short enough for sums not to overflow
  left = std::min(left, kUnbounded);
  right = std::min(right, kUnbounded);
  return mask_mod([left, right](const Position& p) { return bool((p.q - p.kv <= left) & (p.kv - p.q <= right)); },
                  [left, right](const Tile& t) {
                    const Index lowest = t.kv.begin - (t.q.end - 1),
                                highest = t.kv.end - 1 - t.q.begin;  // of kv - q in the tile
                    if (highest < -left || lowest > right) return Coverage::none;
                    return lowest >= -left && highest <= right ? Coverage::all : Coverage::some;
                  },
                  [left, right](const Tile& t) {
                    return Range{t.q.begin - left, t.q.end + right};
                  });
}

}  // namespace attn
