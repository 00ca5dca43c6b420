// The rows of a sequence in a cache: their rope positions, and how rows are removed.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/base/ranges.h"
#include "attn/core/tensor/problem.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The rope positions of the rows of a sequence, `axes` for each row. Positions are stored only from the first to the
/// last row whose positions do not follow from those before it.
class ExplicitPositions {
 public:
  explicit ExplicitPositions(Index axes = 1) : axes_(axes) {}

  RowPositions rows() const { return {first_, listed_, axes_}; }

  /// Reserves memory for append().
  void reserve(Index row, Index count, const Index* given) {
    if (given == nullptr) return;
    const auto needed = static_cast<std::size_t>((listed_.empty() ? count : row + count - first_) * axes_);
    if (needed > listed_.capacity()) listed_.reserve(std::max(needed, 2 * listed_.capacity()));
  }
  /// Appends `count` rows from row `row` on, at the given positions or, if `given` is null, at those that follow.
  void append(Index row, Index count, const Index* given) {
    for (Index i = 0; given && i < count; ++i) append(row + i, [&](Index axis) { return given[i * axes_ + axis]; });
  }
  /// Appends a row; position_of(axis) is its position on an axis.
  template <class PositionOf>
  void append(Index row, const PositionOf& position_of) {
    const auto list = [&](Index next, const auto& positions) {
      for (Index axis = 0; axis < axes_; ++axis) listed_.push_back(positions(next, axis));
    };
    bool follows = true;
    for (Index axis = 0; axis < axes_; ++axis) follows &= position_of(axis) == rows()(row, axis);
    if (follows) return;
    if (listed_.empty()) first_ = row;
    for (Index next = first_ + static_cast<Index>(listed_.size()) / axes_; next < row; ++next)
      list(next, [&](Index r, Index axis) { return rows()(r, axis); });
    list(row, [&](Index, Index axis) { return position_of(axis); });
  }
  void truncate(Index length) noexcept {
    const auto left = static_cast<std::size_t>(std::max<Index>(length - first_, 0) * axes_);
    if (left < listed_.size()) listed_.erase(listed_.begin() + static_cast<std::ptrdiff_t>(left), listed_.end());
  }

 private:
  Index axes_, first_ = 0;
  std::vector<Index> listed_;
};

/// Returns the positions of the appended tokens of all sequences, back to back, `axes` for each token; empty if
/// `positions` is. `axes` is 0 without a rope. If sequences are packed, `tokens` is the total over all of them.
/// Otherwise it is the number of tokens of each sequence, and `positions` may hold those of one sequence, which then
/// apply to all. See AppendOptions::positions for their order.
inline std::vector<Index> checked_positions(std::span<const Index> positions, Index tokens, Index sequences,
                                            bool packed, Index axes) {
  if (positions.empty()) return {};
  const Index given = static_cast<Index>(positions.size()), all_tokens = packed ? tokens : tokens * sequences;
  require(axes > 0, "append: got ", given,
          " positions for a cache without a rope, where they would have no effect; omit them, or construct the cache "
          "with .rope = attn::Rope(...)");
  const char* const together = axes > 1 ? ", or one for each that applies to all axes" : "";
  const bool fits = given == tokens || given == axes * tokens || given == axes * all_tokens;
  if (packed)
    require(fits, "append: got ", given, " positions for ", tokens, " tokens; give ", axes, " for each", together);
  else
    require(fits, "append: got ", given, " positions for ", sequences, " sequences of ", tokens, " tokens each; give ",
            axes, " for each token, of one sequence or of all", together);
  for (Index i = 0; i < given; ++i)
    require(is_near(positions[static_cast<std::size_t>(i)]), "append: positions[", i, "] must be within ±2^",
            kIndexBits, ", but is ", positions[static_cast<std::size_t>(i)]);
  const Index listed = given == tokens ? tokens : given / axes;  // tokens in the list of an axis
  std::vector<Index> all;
  all.reserve(static_cast<std::size_t>(all_tokens * axes));
  for (Index token = 0; token < all_tokens; ++token)
    for (Index axis = 0; axis < axes; ++axis)
      all.push_back(positions[static_cast<std::size_t>((axis * listed + token % listed) % given)]);
  return all;
}

/// Calls visit(i, positions of the lens[i] tokens of sequence i) for each sequence. `positions` has those of all
/// sequences back to back, `axes` for each token; if it is empty, visit() gets null.
template <class Visit>
void for_each_given(std::span<const Index> positions, Index axes, std::span<const Index> lens, const Visit& visit) {
  const Index* next = positions.empty() ? nullptr : positions.data();
  for (std::size_t i = 0; i < lens.size(); ++i) {
    visit(i, next);
    if (next) next += lens[i] * axes;
  }
}

/// Rows of a page that move to another place, or whose keys are rotated by `shift` positions, or both.
struct RowMove {
  Index from_page, from_row, to_page, to_row, count, shift;
};

/// The new page table of a sequence, and the moves that fill it. Moves are made in order; none overwrites rows that a
/// later one reads.
struct Removal {
  std::vector<RowMove> moves;
  std::vector<Index> pages;     ///< the new table of the sequence
  std::vector<Index> released;  ///< pages of the old table that are not in the new one
  Index taken = 0;              ///< free pages in the new table
  Index length = 0;
  ExplicitPositions positions;
};

/// Contiguous rows that remain, all in one page before the removal and in one page after it.
struct RemainingRows {
  Index from, to, count, shift;
};

/// Plans a removal that keeps only the rows in `kept`, which are ascending ranges, none of them empty. Each page of the
/// new table is the old page that held its first row. So rows only move towards the front of the table, and a page
/// whose rows all stay in place is not touched. For an old page that must be written to, write_to(page) chooses the
/// page to write: the same one, or a free one in its place.
///
/// If `closes_gaps`, rows after the removed rows [begin, end) are rotated by the position of `begin` minus that of
/// `end`, which must be the same on all axes.
template <class WriteTo>
Removal plan_removal(std::span<const Index> table, Index page_size, RowPositions positions, std::span<const Range> kept,
                     bool closes_gaps, const WriteTo& write_to) {
  Removal plan;
  plan.positions = ExplicitPositions(positions.axes);
  std::vector<RemainingRows> remaining;
  Index shift = 0, seen = 0;
  for (const Range& range : kept) {
    if (closes_gaps && range.begin > seen) {
      const auto gap = [&](Index axis) { return positions(seen, axis) - positions(range.begin, axis); };
      for (Index axis = 1; axis < positions.axes; ++axis)
        require(gap(axis) == gap(0), "removing rows: row ", range.begin, " cannot follow the rows before row ", seen,
                ", because it would move by ", gap(0), " positions on axis 0, but by ", gap(axis), " on axis ", axis,
                "; remove all rows of an image, or set DropOptions::keep_positions");
      shift += gap(0);
    }
    seen = range.end;
    const Index begin = plan.length;
    for (Index from = range.begin; from < range.end;) {
      const Index to = plan.length,
                  count = std::min({range.end - from, page_size - from % page_size, page_size - to % page_size});
      remaining.push_back({from, to, count, shift});
      from += count;
      plan.length += count;
    }
    // Positions that are row numbers remain row numbers if gaps close.
    if (positions.listed.empty() && closes_gaps) continue;
    for (Index i = 0; i < range.size(); ++i)
      plan.positions.append(begin + i, [&](Index axis) { return positions(range.begin + i, axis) + shift; });
  }

  plan.pages.reserve(table.size());
  std::vector<bool> stays(table.size(), false);  // whether the new table has this page
  for (auto next = remaining.begin(); next != remaining.end();) {
    // The rows of one page of the new table, which replaces page `old` of the old table.
    const auto first = next;
    const auto end = std::find_if(first, remaining.end(), [&](const RemainingRows& rows) {
      return rows.to / page_size != first->to / page_size;
    });
    const auto old = static_cast<std::size_t>(first->from / page_size);
    const auto in_place = [&](const RemainingRows& rows) {
      return static_cast<std::size_t>(rows.from / page_size) == old && rows.from % page_size == rows.to % page_size &&
             rows.shift == 0;
    };
    const Index page = std::all_of(first, end, in_place) ? table[old] : write_to(table[old]);
    stays[old] = page == table[old];
    if (!stays[old]) ++plan.taken;
    plan.pages.push_back(page);
    for (; next != end; ++next)
      if (!stays[old] || !in_place(*next))
        plan.moves.push_back({table[static_cast<std::size_t>(next->from / page_size)], next->from % page_size, page,
                              next->to % page_size, next->count, next->shift});
  }
  plan.released.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i)
    if (!stays[i]) plan.released.push_back(table[i]);
  return plan;
}

/// The rows that drop() keeps.
inline std::vector<Range> rows_beside(Index begin, Index end, Index sequence, Index length) {
  require(begin >= 0 && begin <= end && end <= length, "drop: begin and end must be in 0..", length,
          " (the tokens of sequence ", sequence, "), and begin must not exceed end, but they are ", begin, " and ",
          end);
  std::vector<Range> kept;
  if (begin > 0) kept.push_back({0, begin});
  if (end < length) kept.push_back({end, length});
  return kept;
}

/// The rows that retain() keeps, as ranges.
inline std::vector<Range> listed_rows(std::span<const Index> rows, Index sequence, Index length) {
  std::vector<Range> kept;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    require(rows[i] >= 0 && rows[i] < length, "retain: rows[", i, "] is ", rows[i], ", but sequence ", sequence,
            " has ", length, " rows");
    require(i == 0 || rows[i] > rows[i - 1], "retain: rows must increase, but rows[", i, "] is ", rows[i], " after ",
            i == 0 ? 0 : rows[i - 1], "; sort them, each once");
    if (kept.empty() || kept.back().end < rows[i]) kept.push_back({rows[i], rows[i]});
    ++kept.back().end;
  }
  return kept;
}

/// The rows that accept() keeps: the context and, of the last `nodes` rows (those of the last append), the nodes of
/// `path`.
inline std::vector<Range> rows_of_path(std::span<const Index> path, Index nodes, Index sequence, Index length,
                                       const std::optional<RowPositions>& rotated) {
  const Index context = length - nodes;
  std::vector<Range> kept;
  if (context > 0) kept.push_back({0, context});
  for (std::size_t i = 0; i < path.size(); ++i) {
    require(path[i] >= 0 && path[i] < nodes, "accept: path[", i, "] is node ", path[i], ", but there are ", nodes,
            " nodes, the tokens of the last append to sequence ", sequence, " that it still has");
    require(i == 0 || path[i] > path[i - 1], "accept: path[", i, "] is ", path[i], " after ", i == 0 ? 0 : path[i - 1],
            "; a path must increase, because parents come before their children");
    const Index row = context + path[i];
    if (rotated) {
      const RowPositions& at = *rotated;
      const Index first = context > 0 ? at.largest(context - 1) + 1 : at(path[0]),
                  wanted = first + static_cast<Index>(i);
      for (Index axis = 0; axis < at.axes; ++axis)
        require(at(row, axis) == wanted, "accept: path[", i, "], node ", path[i], ", is at position ", at(row, axis),
                at.axes > 1 ? " on an axis" : "", ", but in a path after this context it must be at position ", wanted,
                "; each node must be a child of the one before it, and nodes must be appended with {.positions = "
                "attn::tree_positions(parents, ",
                first, ")}");
    }
    if (kept.empty() || kept.back().end < row) kept.push_back({row, row});
    ++kept.back().end;
  }
  return kept;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
