// sliding_window(): each query sees the keys around it.
#pragma once

#include <algorithm>

#include "attn/core/base/check.h"
#include "attn/core/mods/hints.h"

namespace attn {

namespace detail {

/// Keeps the pairs with first <= q - kv <= last.
inline auto at_distances(Index first, Index last) {
  return keep_ranges([=](const Position& p) { return Range{p.q - last, p.q - first + 1}; });
}

}  // namespace detail

/// Keeps keys q - left .. q + right, both ends included (Child et al. 2019; Beltagy et al. 2020). `right` = 0 makes it
/// causal.
///
///     left 1, right 0    left 1, right 1
///         1 0 0 0            1 1 0 0
///         1 1 0 0            1 1 1 0
///         0 1 1 0            0 1 1 1
///         0 0 1 1            0 0 1 1
///
/// @throws std::invalid_argument if `left` or `right` is negative.
inline auto sliding_window(Index left, Index right = 0) {
  detail::require(left >= 0 && right >= 0, "sliding_window(", left, ", ", right,
                  "): left and right must not be negative");
  return detail::at_distances(-std::min(right, detail::kUnbounded), std::min(left, detail::kUnbounded));
}

}  // namespace attn
