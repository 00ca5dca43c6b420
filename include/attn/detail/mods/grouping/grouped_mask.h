// Masks whose far pairs become dense once tokens are grouped, and where the tokens of groups lie.
#pragma once

#include <optional>
#include <utility>

#include "attn/detail/base/ranges.h"
#include "attn/detail/mods/pair_grid.h"
#include "attn/mod.h"

namespace attn::detail {

/// Which queries and keys go together. The position of a token is step * its number + its group.
struct Grouping {
  Index step;
  std::optional<Range> shared;  ///< each query sees the keys of all these groups; none: the keys of its own group
  bool always = false;          ///< group even where it does not pay, for tests
};

/// A mask that is the union of two without a common pair: `near` in the order of the tokens, and `far` on numbers
/// within groups. The base class is the mask for those who ask about single pairs.
template <class Mask, class Near, class Far>
struct GroupedMask : Mask {
  Near near;  ///< NoHint: there is none
  Far far;    ///< its positions and tiles count within a group
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

/// Neighbouring groups of one batch element. They are computed as a call of their own: each group is a batch element,
/// and positions are the numbers of tokens within the group.
struct TokenGroups {
  Index batch;
  Index q_step, q_group;         ///< step, and the first group
  Index kv_step, kv_group;       ///< step, and the first group
  Index first_query, first_key;  ///< the rows of the first group's first tokens

  /// Where a pair of the groups lies in the whole call.
  constexpr Position in_call(const Position& p) const {
    return {batch, p.head, q_step * p.q + q_group + p.batch, kv_step * p.kv + kv_group + p.batch};
  }
  /// The pairs of a tile of the groups.
  PairGrid grid(const Tile& t) const {
    return {in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}), q_step, kv_step};
  }
  constexpr Index head_in_call(Index head) const { return head; }
  /// Which numbers within the group of `tile` the keys in a range of the whole call have.
  constexpr Range kv_numbers(const Range& kv, const Tile& tile) const {
    const Index first = kv_group + tile.batch;
    return {ceil_div(kv.begin - first, kv_step), ceil_div(kv.end - first, kv_step)};
  }
};

}  // namespace attn::detail
