// Grids of tokens in up to three dimensions, the windows of neighbourhood() in them, and the strips into which their
// tokens are gathered, so that tiles of queries are compact in the grid.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/grouping/grouped_mask.h"
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

/// Strips of equal size that run along the first dimension of a grid and are a few tokens wide in the others, each with
/// all keys that its queries see. Each strip is a sequence. A tile of queries is a compact piece of a strip, such as 4
/// x 4 tokens, and the keys that it sees are contiguous in the strip's list.
struct GridStrips {
  using Coordinates = TokenGrid::Coordinates;

  Coordinates q_shape, kv_shape;  ///< of a strip, in numbers within a dilation group
  Index count = 0;                ///< number of strips
  bool is_row;                    ///< whether the grid has one dimension
  /// Whether queries see all or none of a row of keys. A causal window as wide as the row may still end before the row
  /// does.
  bool sees_rows_whole = true;
  Index step;                ///< of both lists; see RowList
  std::vector<Index> q, kv;  ///< tokens of all strips
  WindowTable windows;       ///< in numbers within a strip; key i has the same numbers in every strip

  /// Has no strips yet.
  GridStrips(const TokenGrid& grid, const Coordinates& shape_of_q, const Coordinates& shape_of_kv)
      : q_shape(shape_of_q),
        kv_shape(shape_of_kv),
        is_row(grid.tokens() == grid.axes[0].length),
        step(grid.axes[is_row ? 0 : 2].dilation),
        windows(grid) {
    TokenGrid::for_each_in(kv_shape, [&](const Coordinates& n) {
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a)
        windows.axes[a].number.push_back(static_cast<std::int32_t>(n[a]));
    });
  }

  Index queries() const { return q_shape[0] * q_shape[1] * q_shape[2]; }
  Index keys() const { return kv_shape[0] * kv_shape[1] * kv_shape[2]; }
  Index row_of_queries() const { return q_shape[1] * q_shape[2]; }
  Index row_of_keys() const { return kv_shape[1] * kv_shape[2]; }
  /// Returns the length of the runs of a list; see RowList. A strip of a one-dimensional grid is one run.
  Index run_of(const Coordinates& shape) const { return is_row ? shape[0] : shape[2]; }

  /// Adds a strip of the dilation group `group`, given the numbers of its first query and first key.
  void add(const TokenGrid& grid, const Coordinates& group, const Coordinates& first_q, const Coordinates& first_kv) {
    const auto token = [&](const Coordinates& n, const Coordinates& first) {
      Coordinates c;
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) c[a] = (first[a] + n[a]) * grid.axes[a].dilation + group[a];
      return grid.token(c);
    };
    TokenGrid::for_each_in(q_shape, [&](const Coordinates& n) {
      q.push_back(token(n, first_q));
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) {
        const Index first = grid.axes[a].first(first_q[a] + n[a], group[a]) - first_kv[a];
        windows.axes[a].first.push_back(static_cast<std::int32_t>(first));
        if (a > 0 && (first > 0 || first + grid.axes[a].window < kv_shape[a])) sees_rows_whole = false;
      }
    });
    TokenGrid::for_each_in(kv_shape, [&](const Coordinates& n) { kv.push_back(token(n, first_kv)); });
    ++count;
  }
};

/// The mask within strips. Positions are indices within a strip.
struct StripMask {
  const GridStrips* strips;

  bool keep(const Position& p) const { return strips->windows.has(p.batch * strips->queries() + p.q, p.kv); }
  Coverage coverage(const Tile& t) const {
    const auto [all, any] = seen(t.q);
    const Index row = strips->row_of_keys();
    const Range rows{t.kv.begin / row, (t.kv.end - 1) / row + 1};
    if (intersect(any, rows).empty()) return Coverage::none;
    return strips->sees_rows_whole && intersect(all, rows) == rows ? Coverage::all : Coverage::some;
  }
  Range kv_range(const Tile& t) const {
    const Range any = seen(t.q).second;
    return {any.begin * strips->row_of_keys(), any.end * strips->row_of_keys()};
  }

 private:
  /// Returns the range of key rows that all of the queries see, and the range that at least one of them sees. In the
  /// first dimension, all strips have the same windows.
  std::pair<Range, Range> seen(const Range& q) const {
    const auto seen_by = [&rows = strips->windows.axes[0], end = strips->kv_shape[0]](Index query) {
      const Index first = rows.first[static_cast<std::size_t>(query)];
      return intersect({first, first + static_cast<Index>(rows.window)}, {0, end});
    };
    const Range first = seen_by(q.begin), last = seen_by(q.end - 1);
    return {{last.begin, first.end}, {first.begin, last.end}};
  }
};

/// All strips of a grid, grouped by size; see GatheredMask.
class StripGathering {
 public:
  /// Queries per tile: one AVX-512 vector of floats. The smaller the tile, the fewer of its pairs are masked: with a
  /// window of 13 x 13, 4 x 4 queries keep 66 % of the pairs with the keys they see and 6 x 8 keep 47 %, while tiles of
  /// one vector reach 85 to 90 % of the speed of tiles of three vectors.
  static constexpr Index kQueries = 16;

  StripGathering(const TokenGrid& grid, bool always) : tokens_(grid.tokens()) {
    if (tokens_ == 0) return;
    // A tile has 4 x 4 queries in two dimensions, and 4 x 2 x 2 in three.
    const Index wide = grid.axes[1].length > 1 ? 2 : 4;
    TokenGrid::for_each_in({grid.axes[0].dilation, grid.axes[1].dilation, grid.axes[2].dilation},
                           [&](const TokenGrid::Coordinates& group) { add_group(grid, group, wide); });
    pays_ = always || pays(grid);
  }

  /// Whether gathering pays off in a call. Only whole grids are gathered: part of a grid, as in token-by-token
  /// generation, has few queries per strip.
  bool pays(const Problem& call) const {
    const auto begins_at_0 = [&] {
      for (Index b = 0; b < call.batch; ++b)
        if (call.first_query(b) != 0) return false;
      return true;
    };
    return pays_ && call.q_len == tokens_ && call.keys() == Range{0, tokens_} && begins_at_0();
  }

  template <class Visit>
  void for_each(const Problem& call, const Visit& visit) const {
    Problem problem = call;
    problem.q_offset = 0;
    problem.q_offsets = {};
    for (Index batch = 0; batch < call.batch; ++batch)
      for (const GridStrips& strips : strips_) {
        problem.batch = strips.count;
        problem.q_len = strips.queries();
        problem.kv_len = strips.keys();
        GatheredTokens tokens;
        tokens.batch = batch;
        tokens.q = {strips.q.data(), problem.q_len, 0, strips.run_of(strips.q_shape), strips.step};
        tokens.kv = {strips.kv.data(), problem.kv_len, 0, strips.run_of(strips.kv_shape), strips.step};
        tokens.most_queries = kQueries;
        visit(tokens, StripMask{&strips}, problem);
      }
  }

 private:
  void add_group(const TokenGrid& grid, const TokenGrid::Coordinates& group, Index wide) {
    TokenGrid::Coordinates numbers, first{}, first_kv{}, q_shape, kv_shape;
    for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) numbers[a] = grid.axes[a].numbers(group[a]);
    q_shape[0] = kv_shape[0] = numbers[0];
    const auto begin = [&](std::size_t a) {
      const GridAxis& axis = grid.axes[a];
      q_shape[a] = std::min(wide, numbers[a] - first[a]);
      kv_shape[a] = std::min(numbers[a], axis.window + q_shape[a] - 1);
      first_kv[a] = std::clamp<Index>(axis.first(first[a], group[a]), 0, numbers[a] - kv_shape[a]);
    };
    for (first[1] = 0; first[1] < numbers[1]; first[1] += wide) {
      begin(1);
      for (first[2] = 0; first[2] < numbers[2]; first[2] += wide) {
        begin(2);
        strips_of(grid, q_shape, kv_shape).add(grid, group, first, first_kv);
      }
    }
  }

  /// Returns the strips of these shapes. There are few shapes: those inside the grid, and those at the ends of its
  /// dimensions.
  GridStrips& strips_of(const TokenGrid& grid, const TokenGrid::Coordinates& q_shape,
                        const TokenGrid::Coordinates& kv_shape) {
    for (GridStrips& strips : strips_)
      if (strips.q_shape == q_shape && strips.kv_shape == kv_shape) return strips;
    return strips_.emplace_back(grid, q_shape, kv_shape);
  }

  /// Whether tiles in strips have clearly fewer pairs than tiles of neighbouring tokens, which extend from the first
  /// row of the window to its last.
  bool pays(const TokenGrid& grid) const {
    const GridAxis& axis = grid.axes[0];
    const Index row = tokens_ / axis.length;
    if (row == 1 && axis.dilation == 1) return false;
    constexpr Index kNeighbours = 48;  // queries of a float tile with AVX-512
    const double plain =
        static_cast<double>(std::min(tokens_, (axis.window * axis.dilation - 1) * row + std::max(row, kNeighbours)));
    double gathered = 0;
    for (const GridStrips& strips : strips_) {
      const Index length = std::min(strips.q_shape[0], ceil_div(kQueries, strips.row_of_queries()));
      const Index keys = std::min(strips.kv_shape[0], axis.window + length - 1) * strips.row_of_keys();
      gathered += static_cast<double>(strips.count * strips.queries()) * static_cast<double>(keys);
    }
    return 3 * gathered < 2 * plain * static_cast<double>(tokens_);
  }

  Index tokens_;
  bool pays_ = false;
  std::vector<GridStrips> strips_;
};

}  // namespace attn::detail
