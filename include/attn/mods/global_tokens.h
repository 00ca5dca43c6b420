// global_tokens(): tokens that see all others and are seen by all.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/core/mods/lengths.h"
#include "attn/mod.h"

namespace attn {

/// Keeps the pairs whose query or key is at one of these positions (Beltagy et al. 2020, section 3.1; Zaheer et al.
/// 2020). Combine it with a window, as in any_of(sliding_window(256, 256), global_tokens({0, 1})).
///
///     global_tokens({1}):  0 1 0 0
///                          1 1 1 1
///                          0 1 0 0
///                          0 1 0 0
///
/// @throws std::invalid_argument for a negative position.
inline auto global_tokens(Indices given) {
  detail::ShortList<Index>& positions = given.values;
  std::sort(positions.begin(), positions.end());
  positions.shrink(static_cast<std::size_t>(std::unique(positions.begin(), positions.end()) - positions.begin()));
  detail::require(positions.empty() || positions[0] >= 0, "global_tokens: positions must not be negative, but one is ",
                  positions.empty() ? Index(0) : positions[0]);
  return bind_mod([positions = std::move(positions)](const Problem&) {
    const auto first_from = [&positions](Index p) { return std::lower_bound(positions.begin(), positions.end(), p); };
    const auto count = [first_from](Range r) { return static_cast<Index>(first_from(r.end) - first_from(r.begin)); };
    const auto is_global = [first_from, end = positions.end()](Index p) {
      const auto found = first_from(p);
      return found != end && *found == p;
    };
    return mask_mod([is_global](const Position& p) { return is_global(p.q) || is_global(p.kv); },
                    [count](const Tile& t) {
                      const Index queries = count(t.q), keys = count(t.kv);
                      if (queries == t.q.size() || keys == t.kv.size()) return Coverage::all;
                      return queries + keys == 0 ? Coverage::none : Coverage::some;
                    },
                    [first_from, count](const Tile& t) {
                      if (count(t.q) > 0) return t.kv;
                      if (count(t.kv) == 0) return Range{t.kv.begin, t.kv.begin};
                      return Range{*first_from(t.kv.begin), *(first_from(t.kv.end) - 1) + 1};
                    });
  });
}

}  // namespace attn
