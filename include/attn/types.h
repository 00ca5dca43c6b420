// The types that all other headers use: index, position, range, tile, sizes of a call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

#include "attn/core/base/requirements.h"

namespace attn {

/// A signed size or position, the same type as Eigen::Index: 64 bits, or 32 for 32-bit targets.
using Index = std::ptrdiff_t;

namespace detail {

/// Sizes, positions and distances are at most 2^kIndexBits (2^60, or 2^28 for 32-bit targets), so that a sum of a few
/// of them does not overflow.
inline constexpr int kIndexBits = std::numeric_limits<Index>::digits - 3;
inline constexpr Index kLargestIndex = Index(1) << kIndexBits;

/// The maximum size of a table with one entry per position: 2^36, or 2^24 for 32-bit targets. A larger one would not
/// fit into memory.
inline constexpr Index kLargestTable = Index(1) << (sizeof(Index) > 4 ? 36 : 24);

}  // namespace detail

/// One (query, key) pair, as a mod sees it.
///
/// `q` and `kv` are absolute: query row i has q = q_offset + i, and key row j has kv = kv_offset + j. `q` may be
/// negative if there are more queries than keys, and `kv` if kv_offset is negative. `head` counts query heads.
struct Position {
  Index batch = 0;  ///< the batch element, or sequence of a cache
  Index head = 0;   ///< the query head
  Index q = 0;      ///< the position of the query
  Index kv = 0;     ///< the position of the key
};

/// A half-open range of positions, [begin, end). Empty when end <= begin.
struct Range {
  Index begin = 0;  ///< the first position
  Index end = 0;    ///< one past the last position

  /// The number of positions; 0 if the range is empty.
  constexpr Index size() const { return std::max<Index>(end - begin, 0); }
  /// Whether the range has no positions.
  constexpr bool empty() const { return end <= begin; }
  /// Whether both have the same bounds; two empty ranges may compare unequal.
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// The positions that are in both ranges.
constexpr Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// All pairs of a range of queries with a range of keys, in one head. Positions are absolute, as in Position.
struct Tile {
  Index batch = 0;  ///< the batch element, or sequence of a cache
  Index head = 0;   ///< the query head
  Range q;          ///< positions of queries
  Range kv;         ///< positions of keys
};

/// How many pairs of a tile a mask keeps. `some` is always a correct answer; the others save work.
enum class Coverage : unsigned char { none, some, all };

/// The positions by which a rope rotates the rows of a sequence. `listed` has the positions of rows `first`, first + 1,
/// …; the position of an earlier row, or of any row if the list is empty, is its row number. With the rope of a
/// RopeAxes, a row has a position on each axis.
struct RowPositions {
  Index first = 0;                     ///< the first row that is listed
  std::span<const Index> listed = {};  ///< the positions of rows first, first + 1, …: `axes` numbers for each row
  Index axes = 1;                      ///< positions of a row

  /// Returns the position of a row on an axis. Rows after the list continue on all axes from the largest position of
  /// its last row; rows before row 0 count down from the position of row 0.
  constexpr Index operator()(Index row, Index axis = 0) const {
    const Index i = row - first, end = static_cast<Index>(listed.size()) / axes;
    if (end == 0 || (i < 0 && first > 0)) return row;
    if (i >= end) return largest(first + end - 1) + (i - end + 1);
    return listed[static_cast<std::size_t>(std::max<Index>(i, 0) * axes + axis)] + std::min<Index>(i, 0);
  }
  /// The largest of the positions of a row.
  constexpr Index largest(Index row) const {
    Index most = (*this)(row);
    for (Index axis = 1; axis < axes; ++axis) most = std::max(most, (*this)(row, axis));
    return most;
  }
};

/// The sizes and parameters of one call, after all checks. Mods that need them are made by `bind_mod`.
struct Problem {
  Index batch = 1;        ///< batch elements
  Index heads = 1;        ///< heads of the query
  Index kv_heads = 1;     ///< heads of key and value, a divisor of `heads`
  Index q_len = 0;        ///< queries of a head
  Index kv_len = 0;       ///< keys of a head
  Index head_dim = 0;     ///< features of queries and keys
  Index v_dim = 0;        ///< features of values
  long double scale = 1;  ///< multiplies query * key
  Index q_offset = 0;     ///< absolute position of query row 0
  Index kv_offset = 0;    ///< absolute position of key row 0
  /// Whether kv_offset was given. The keys may then be a part of a longer sequence, and data that mods hold for keys
  /// refers to all keys of that sequence.
  bool has_part_of_keys = false;
  /// The batch element that q_len, kv_len and q_offset belong to, if each has its own (a cache, or q_offsets);
  /// otherwise empty. Mods made for this problem see only that batch element.
  std::optional<Index> sequence = std::nullopt;
  /// The absolute positions of query row 0, one for each batch element, if each has its own q_offset; otherwise empty.
  /// Mods never see this list, because bind_mod() makes them once for each batch element, with that element's q_offset.
  std::span<const Index> q_offsets = {};
  /// The bias added to the scores if the weights are their sigmoids; empty for a softmax. See Normaliser.
  std::optional<double> sigmoid_bias = std::nullopt;

  /// The positions by which the rope of a cache or layer rotates keys and queries. The query at position q is rotated
  /// like row q - kv_offset. Empty without a rope. A mod that gives tokens other positions must reject the call.
  std::optional<RowPositions> rope_positions = std::nullopt;
  /// Whether the bits of a row must depend on that row alone; see Options::row_invariant.
  bool row_invariant = false;
  /// Whether a mod changes weights after the softmax; see weight_mod().
  bool changes_weights = false;
  /// Whether query heads that share a key head are kv_heads apart, rather than consecutive.
  bool interleaved_heads = false;

  /// The absolute position of query row 0 of a batch element.
  constexpr Index first_query(Index batch_element) const {
    return q_offsets.empty() ? q_offset : q_offsets[static_cast<std::size_t>(batch_element)];
  }

  /// The absolute positions of the keys.
  constexpr Range keys() const { return {kv_offset, kv_offset + kv_len}; }

  /// The row of the key at the same position as query row 0 of a batch element. It may be out of range.
  constexpr Index first_query_among_keys(Index batch_element) const { return first_query(batch_element) - kv_offset; }

  /// The key and value head that a query head uses.
  constexpr Index kv_head(Index head) const {
    if (heads == kv_heads) return head;
    return interleaved_heads ? head % kv_heads : head / (heads / kv_heads);
  }
  /// The distance between query heads that share a key and value head.
  constexpr Index head_step() const { return interleaved_heads ? kv_heads : 1; }
  /// Query head `number` of those that use a key and value head.
  constexpr Index head_of(Index kv_head, Index number) const {
    return (interleaved_heads ? kv_head : kv_head * (heads / kv_heads)) + number * head_step();
  }
};

}  // namespace attn
