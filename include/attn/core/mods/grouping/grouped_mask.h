// Masks that become dense, in whole or in part, once tokens are grouped or gathered, and the positions of these tokens.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/pair_grid.h"
#include "attn/core/tensor/kv_rows.h"
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

/// Whether a mask groups tokens or gathers keys.
template <class M>
constexpr bool is_grouped = requires(const M& mask) {
  mask.grouping;
}
|| requires(const M& mask) { mask.gathering; };

/// Whether the first grouped mask of a call lists keys.
template <class Mods>
constexpr bool lists_keys() {
  if constexpr (Mods::kIsGrouped) return requires(const Mods& mods) {
      mods.grouped().gathering->by_key();
    };
  else
    return false;
}

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

/// A mask that can list the keys that some queries need. `gathering` has
///
///     bool pays(const Problem& call) const;       whether gathering saves work
///     void for_each(const Problem& call, visit) const;
///
/// for_each() calls visit(tokens, far, problem) for disjoint parts of the call that together cover all its queries.
/// `far` is the mask on indices into `tokens`, and `problem` has the sizes of the part. The base class is the whole
/// mask, for evaluating single pairs.
template <class Mask, class Gathering>
struct GatheredMask : Mask {
  const Gathering* gathering;  ///< outlives the call
  Index q_len;                 ///< of the call that the mask was made for, like `keys`
  Range keys;

  /// Whether the keys of this call are gathered. A mask made for more keys, or for other queries, is evaluated pair by
  /// pair instead.
  bool gathers(const Problem& call) const { return is_made_for(call) && gathering->pays(call); }
  /// Whether the backward pass gathers the keys of this call; only for masks that list keys.
  bool gathers_backward(const Problem& call) const { return is_made_for(call) && gathering->pays_backward(call); }

 private:
  bool is_made_for(const Problem& call) const { return call.q_len == q_len && call.keys() == keys; }
};

template <class Mask, class Gathering>
GatheredMask<Mask, Gathering> gathered_mask(Mask mask, const Gathering& gathering, const Problem& call) {
  return {std::move(mask), &gathering, call.q_len, call.keys()};
}

/// Tokens of one batch element of a call, gathered into several short sequences. These are computed as a separate call:
/// each sequence is a batch element, and positions are indices into its lists. The entries of a list ascend.
struct GatheredTokens {
  Index batch = 0;
  RowList q;  ///< queries of the sequences; if absent, query n of sequence t is row t * rows_of_sequence + n
  Index rows_of_sequence = 0;
  Index q_offset = 0;                   ///< the position of query row 0 in the call
  RowList kv;                           ///< keys of the sequences and key heads
  Index kv_offset = 0;                  ///< the position of key row 0 in the call
  Index first_head = 0, head_step = 1;  ///< of the query heads that take part
  Index heads_of_list = 1;              ///< number of neighbouring heads that share a list of keys
  Index most_queries = 0;               ///< per tile; 0 for the kernels' maximum

  constexpr const Index* kv_list(Index sequence, Index head) const { return kv.of(sequence, head / heads_of_list); }
  constexpr Index query(Index sequence, Index number) const {
    return (q.exists() ? q.at(sequence, 0, number) : sequence * rows_of_sequence + number) + q_offset;
  }
  constexpr Index head_in_call(Index head) const { return first_head + head * head_step; }

  /// Returns a pair's position in the whole call.
  constexpr Position in_call(const Position& p) const {
    return {batch, head_in_call(p.head), query(p.batch, p.q), kv_list(p.batch, p.head)[p.kv] + kv_offset};
  }
  /// Returns the positions of a tile's pairs in the whole call.
  PairGrid grid(const Tile& t) const {
    PairGrid grid{in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin})};
    if (q.exists()) grid.q_list = q.of(t.batch, 0) + t.q.begin;
    grid.queries = t.q.size();
    grid.kv_list = kv_list(t.batch, t.head) + t.kv.begin;
    grid.kv_offset = kv_offset;
    return grid;
  }
  /// Converts a range of keys of the whole call to indices within tile.kv.
  Range kv_numbers(const Range& range, const Tile& tile) const {
    const Index* const list = kv_list(tile.batch, tile.head);
    const auto first_from = [&](Index key) {
      return std::lower_bound(list + tile.kv.begin, list + tile.kv.end, key - kv_offset) - list;
    };
    return {first_from(range.begin), first_from(range.end)};
  }
};

}  // namespace attn::detail
