// Grids of tokens in up to three dimensions, and the windows of neighbourhood() in them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/hints.h"

namespace attn::detail {

/// A dimension of a grid, and the window in it. Coordinates that are equal modulo the dilation form a group and are
/// numbered within it; a window is a range of these numbers.
struct GridAxis {
  Index length = 1, window = 1, dilation = 1;
  bool causal = false;

  Index numbers(Index group) const { return ceil_div(length - group, dilation); }
  /// Returns the first number of the window of query `n`. Causal windows may begin before 0.
  Index first(Index n, Index group) const {
    return causal ? n - window + 1 : std::clamp<Index>(n - window / 2, 0, numbers(group) - window);
  }

  /// Returns a range that contains all coordinates in the windows of the queries at `q`, and possibly others in
  /// between.
  Range seen(const Range& q) const {
    if (causal) return intersect({q.begin - (window - 1) * dilation, q.end}, {0, length});
    const Index before = window / 2 * dilation, span = (window - 1) * dilation;
    // At the borders, windows are shifted inwards. A group may begin or end up to dilation - 1 away from the border.
    return intersect(
        {std::min(q.begin - before, length - window * dilation), std::max(q.end - before + span, window * dilation)},
        {0, length});
  }

  Coverage coverage(const Range& q, const Range& kv) const {
    if (intersect(seen(q), kv).empty()) return Coverage::none;
    if (dilation > 1 && !has_multiple({q.begin - (kv.end - 1), q.end - kv.begin}, dilation)) return Coverage::none;
    if (dilation > 1 && (q.size() > 1 || kv.size() > 1)) return Coverage::some;
    // Windows never move back as queries advance, so the windows of the first and the last query decide.
    const Index group = q.begin % dilation, begin = q.begin / dilation, last = (q.end - 1) / dilation;
    const Range all{first(last, group), first(begin, group) + window};
    const Range numbers{kv.begin / dilation, (kv.end - 1) / dilation + 1};
    if (q.size() == 1 && intersect(all, numbers).empty()) return Coverage::none;
    return all.begin <= numbers.begin && numbers.end <= all.end ? Coverage::all : Coverage::some;
  }
};

/// A grid of tokens in row-major order.
struct TokenGrid {
  static constexpr std::size_t kAxes = 3;
  using Coordinates = std::array<Index, kAxes>;
  using Box = std::array<Range, kAxes>;

  std::array<GridAxis, kAxes> axes;

  Index tokens() const { return axes[0].length * axes[1].length * axes[2].length; }
  Index token(const Coordinates& c) const { return (c[0] * axes[1].length + c[1]) * axes[2].length + c[2]; }
  Coordinates coordinates(Index token) const {
    const Index row = token / axes[2].length;
    return {row / axes[1].length, row % axes[1].length, token % axes[2].length};
  }

  /// Calls visit(c) for all coordinates of a grid of these lengths, in row-major order.
  template <class Visit>
  static void for_each_in(const Coordinates& lengths, const Visit& visit) {
    for (Index i = 0; i < lengths[0]; ++i)
      for (Index j = 0; j < lengths[1]; ++j)
        for (Index k = 0; k < lengths[2]; ++k) visit(Coordinates{i, j, k});
  }

  /// Returns the smallest box that contains all tokens of a range.
  Box box(const Range& range) const {
    const Coordinates first = coordinates(range.begin), last = coordinates(range.end - 1);
    Box box;
    bool same = true;  // whether both ends are equal in all dimensions before this one
    for (std::size_t a = 0; a < kAxes; ++a) {
      box[a] = same ? Range{first[a], last[a] + 1} : Range{0, axes[a].length};
      same = same && first[a] == last[a];
    }
    return box;
  }

  Coverage coverage(const Tile& t) const {
    const Box q = box(t.q), kv = box(t.kv);
    Coverage least = Coverage::all;
    for (std::size_t a = 0; a < kAxes; ++a) least = std::min(least, axes[a].coverage(q[a], kv[a]));
    return least;
  }

  /// Returns the range from the first to the last key that any of the queries keeps.
  Range kv_range(const Range& queries) const {
    const Box q = box(queries);
    Coordinates first, last;
    for (std::size_t a = 0; a < kAxes; ++a) {
      const Range seen = axes[a].seen(q[a]);
      first[a] = seen.begin, last[a] = seen.end - 1;
    }
    return {token(first), token(last) + 1};
  }
};

/// The windows of queries and the numbers of keys, which a predicate compares without a division.
struct WindowTable {
  struct Axis {
    std::vector<std::int32_t> first;   ///< the first number of each query's window
    std::vector<std::int32_t> number;  ///< the number of each key
    std::uint32_t window = 1;
  };
  std::array<Axis, TokenGrid::kAxes> axes;

  /// Has no queries or keys yet.
  explicit WindowTable(const TokenGrid& grid) {
    for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) axes[a].window = static_cast<std::uint32_t>(grid.axes[a].window);
  }

  /// The table of all tokens. Numbers of different groups are so far apart that no window reaches another group; they
  /// stay below 4 * length.
  static WindowTable of_all(const TokenGrid& grid) {
    WindowTable table(grid);
    for (Index token = 0; token < grid.tokens(); ++token) {
      const TokenGrid::Coordinates c = grid.coordinates(token);
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) {
        const GridAxis& axis = grid.axes[a];
        const Index group = c[a] % axis.dilation, number = c[a] / axis.dilation, begin = 2 * group * axis.numbers(0);
        table.axes[a].first.push_back(static_cast<std::int32_t>(begin + axis.first(number, group)));
        table.axes[a].number.push_back(static_cast<std::int32_t>(begin + number));
      }
    }
    return table;
  }

  /// Whether the query's window contains the key.
  bool has(Index q, Index kv) const {
    const bool in_first = has(axes[0], q, kv), in_second = has(axes[1], q, kv), in_third = has(axes[2], q, kv);
    return bool(in_first & in_second & in_third);  // without a branch
  }

 private:
  static bool has(const Axis& a, Index q, Index kv) {
    return static_cast<std::uint32_t>(a.number.data()[kv] - a.first.data()[q]) < a.window;
  }
};

}  // namespace attn::detail
