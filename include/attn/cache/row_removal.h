// Plans the removal of rows of a sequence: which rows stay, and where they move.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/cache/explicit_positions.h"
#include "attn/core/base/check.h"
#include "attn/core/base/ranges.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
/// `end`.
template <class WriteTo>
Removal plan_removal(std::span<const Index> table, Index page_size, RowPositions positions, std::span<const Range> kept,
                     bool closes_gaps, const WriteTo& write_to) {
  Removal plan;
  std::vector<RemainingRows> remaining;
  Index shift = 0, seen = 0;
  for (const Range& range : kept) {
    if (closes_gaps && range.begin > seen) shift += positions(seen) - positions(range.begin);
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
    for (Index i = 0; i < range.size(); ++i) plan.positions.append(begin + i, positions(range.begin + i) + shift);
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
      const Index first = context > 0 ? at(context - 1) + 1 : at(path[0]), wanted = first + static_cast<Index>(i);
      require(at(row) == wanted, "accept: path[", i, "], node ", path[i], ", is at position ", at(row),
              ", but in a path after this context it must be at position ", wanted,
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
