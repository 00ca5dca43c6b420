// Layer 2: sliding_window(), each query sees the keys around it.
#pragma once

#include <algorithm>

#include "attn/detail/check.h"
#include "attn/detail/distance.h"
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
  left = std::min(left, detail::kUnbounded);
  right = std::min(right, detail::kUnbounded);
  return mask_mod([left, right](const Position& p) { return bool((p.q - p.kv <= left) & (p.kv - p.q <= right)); },
                  [left, right](const Tile& t) {
                    const Range all = detail::distances(t), seen = intersect(all, {-right, left + 1});
                    return seen.empty() ? Coverage::none : seen == all ? Coverage::all : Coverage::some;
                  },
                  [left, right](const Tile& t) {
                    return Range{t.q.begin - left, t.q.end + right};
                  });
}

}  // namespace attn
