// Masks that become dense, in whole or in part, once tokens are grouped, and the positions of grouped tokens.
#pragma once

#include <optional>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/pair_grid.h"
#include "attn/mod.h"

namespace attn::detail {

/// How queries and keys are grouped. Token i of group g has the position step * i + g.
struct Grouping {
  Index step;
  std::optional<Range> shared;  ///< groups whose keys every query sees; if absent, each query sees its own group
  bool always = false;          ///< whether to group even if that does not pay off, for tests
};

/// A mask that is the union of two disjoint masks: `near` on positions, and `far`, which is dense, on indices within
/// groups. The base class is the whole mask, for evaluating single pairs.
template <class Mask, class Near, class Far>
struct GroupedMask : Mask {
  Near near;  ///< NoHint if absent
  Far far;    ///< its positions and tiles are indices within a group
  Grouping grouping;
};

template <class Mask, class Near, class Far>
GroupedMask<Mask, Near, Far> grouped_mask(Mask mask, Near near, Far far, const Grouping& grouping) {
  return {std::move(mask), std::move(near), std::move(far), grouping};
}

template <class M>
constexpr bool is_grouped = false;
template <class Mask, class Near, class Far>
constexpr bool is_grouped<GroupedMask<Mask, Near, Far>> = true;
template <class Mask, class Near, class Far>
constexpr bool is_mask<GroupedMask<Mask, Near, Far>> = true;

/// Neighbouring groups of one batch element, computed as a separate call: each group is a batch element, and positions
/// are the indices of tokens within the group.
struct TokenGroups {
  Index batch;
  Index q_step, q_group;         ///< step, and the first group
  Index kv_step, kv_group;       ///< step, and the first group
  Index first_query, first_key;  ///< the rows of the first group's first tokens

  /// Returns a pair's position in the whole call.
  constexpr Position in_call(const Position& p) const {
    return {batch, p.head, q_step * p.q + q_group + p.batch, kv_step * p.kv + kv_group + p.batch};
  }
  /// Returns the positions of a tile's pairs in the whole call.
  PairGrid grid(const Tile& t) const {
    return {in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}), q_step, kv_step};
  }
  constexpr Index head_in_call(Index head) const { return head; }
  /// Converts a range of keys of the whole call to indices within the group of `tile`.
  constexpr Range kv_numbers(const Range& kv, const Tile& tile) const {
    const Index first = kv_group + tile.batch;
    return {ceil_div(kv.begin - first, kv_step), ceil_div(kv.end - first, kv_step)};
  }
};

}  // namespace attn::detail
