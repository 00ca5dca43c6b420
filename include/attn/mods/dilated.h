// dilated(): a sliding window with gaps.
#pragma once

#include <algorithm>

#include "attn/core/base/check.h"
#include "attn/core/mods/grouping/grouped_mask.h"
#include "attn/core/mods/hints.h"
#include "attn/mods/sliding_window.h"

namespace attn {

/// Keeps the query's own key and the keys at distances dilation, 2 * dilation, …: `left` of them before it and `right`
/// after it (Beltagy et al. 2020, section 3.1). dilated(left, 1, right) is sliding_window(left, right).
///
///     left 1, dilation 2, right 0    left 1, dilation 2, right 1
///             1 0 0 0                        1 0 1 0
///             0 1 0 0                        0 1 0 1
///             1 0 1 0                        1 0 1 0
///             0 1 0 1                        0 1 0 1
///
/// The work is proportional to the kept pairs: tokens are grouped by their position modulo `dilation`, and within a
/// group the mask is a sliding window. Tokens are grouped only if the groups are long enough for that to pay off, and
/// never inside any_of(), all_of(), not_() and block_mask().
/// @throws std::invalid_argument if `left` or `right` is negative or `dilation` is below 1.
inline auto dilated(Index left, Index dilation, Index right = 0) {
  detail::require(left >= 0 && right >= 0 && dilation > 0, "dilated(", left, ", ", dilation, ", ", right,
                  "): left and right must not be negative, and dilation must be positive");
  const Index before = detail::reach(left, dilation), after = detail::reach(right, dilation);
  const auto mask = mask_mod(
      [=](const Position& p) {
        const Index distance = p.q - p.kv;
        return bool((distance <= before) & (distance >= -after) & (distance % dilation == 0));
      },
      [=](const Tile& t) {
        const Range all = detail::distances(t), seen = intersect(all, {-after, before + 1});
        if (!detail::has_multiple(seen, dilation)) return Coverage::none;
        return seen == all && (dilation == 1 || all.size() == 1) ? Coverage::all : Coverage::some;
      },
      [=](const Tile& t) {
        return Range{t.q.begin - before, t.q.end + after};
      });
  return detail::grouped_mask(mask, detail::NoHint{}, sliding_window(left, right),
                              {std::min(dilation, detail::kUnbounded), {}});
}

}  // namespace attn
