// Tokens of a grid gathered into strips, so that tiles of queries are compact in the grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "attn/detail/mods/grouping/gathered_mask.h"
#include "attn/detail/mods/grouping/token_grid.h"

namespace attn::detail {

/// Strips of equal size that run along the first dimension of a grid and are a few tokens wide in the others, each with
/// all keys that its queries see. Each strip is a sequence. A tile of queries is a compact piece of a strip, such as 4
/// x 4 tokens, and the keys that it sees are contiguous in the strip's list.
struct GridStrips {
  TokenGrid::Coordinates q_shape, kv_shape;  ///< of a strip, in numbers within a dilation group
  Index texts = 0;
  bool is_row = false;  ///< whether the grid has one dimension
  /// Whether queries see all or none of a row of keys. A causal window as wide as the row may still end before the row
  /// does.
  bool sees_rows_whole = true;
  Index step = 1;            ///< of both lists; see RowList
  std::vector<Index> q, kv;  ///< tokens of all strips
  WindowTable windows;       ///< in numbers within the strips; numbers of keys are the same in all strips
  std::vector<Range> seen;   ///< for each number of the first dimension, the range that its queries see

  Index queries() const { return q_shape[0] * q_shape[1] * q_shape[2]; }
  Index keys() const { return kv_shape[0] * kv_shape[1] * kv_shape[2]; }
  Index row_of_queries() const { return q_shape[1] * q_shape[2]; }
  Index row_of_keys() const { return kv_shape[1] * kv_shape[2]; }
  /// Returns the length of the runs of a list; see RowList. A strip of a one-dimensional grid is one run.
  Index run_of(const TokenGrid::Coordinates& shape) const { return is_row ? shape[0] : shape[2]; }

  /// Adds a strip of the dilation group `group`, given the numbers of its first query and first key.
  void add(const TokenGrid& grid, const TokenGrid::Coordinates& group, const TokenGrid::Coordinates& first_q,
           const TokenGrid::Coordinates& first_kv) {
    const auto token = [&](const TokenGrid::Coordinates& number) {
      TokenGrid::Coordinates c;
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) c[a] = number[a] * grid.axes[a].dilation + group[a];
      return grid.token(c);
    };
    const auto each = [](const TokenGrid::Coordinates& shape, const auto& visit) {
      for (Index i = 0; i < shape[0]; ++i)
        for (Index j = 0; j < shape[1]; ++j)
          for (Index k = 0; k < shape[2]; ++k) visit(TokenGrid::Coordinates{i, j, k});
    };
    each(q_shape, [&](TokenGrid::Coordinates n) {
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) {
        n[a] += first_q[a];
        const Index first = grid.axes[a].first(n[a], group[a]) - first_kv[a];
        windows.axes[a].first.push_back(static_cast<std::int32_t>(first));
        if (a > 0 && (first > 0 || first + grid.axes[a].window < kv_shape[a])) sees_rows_whole = false;
      }
      q.push_back(token(n));
    });
    each(kv_shape, [&](TokenGrid::Coordinates n) {
      for (std::size_t a = 0; a < TokenGrid::kAxes; ++a) {
        if (texts == 0) windows.axes[a].number.push_back(static_cast<std::int32_t>(n[a]));
        n[a] += first_kv[a];
      }
      kv.push_back(token(n));
    });
    if (texts++ > 0) return;
    for (std::size_t a = 0; a < TokenGrid::kAxes; ++a)
      windows.axes[a].window = static_cast<std::uint32_t>(grid.axes[a].window);
    for (Index n = 0; n < q_shape[0]; ++n) {
      const Index first = grid.axes[0].first(n, group[0]);
      seen.push_back(intersect({first, first + grid.axes[0].window}, {0, kv_shape[0]}));
    }
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
  /// Returns the range of key rows that all of the queries see, and the range that at least one of them sees.
  std::pair<Range, Range> seen(const Range& q) const {
    const Index row = strips->row_of_queries();
    const Range first = strips->seen[static_cast<std::size_t>(q.begin / row)],
                last = strips->seen[static_cast<std::size_t>((q.end - 1) / row)];
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
    TokenGrid::Coordinates group;
    for (group[0] = 0; group[0] < grid.axes[0].dilation; ++group[0])
      for (group[1] = 0; group[1] < grid.axes[1].dilation; ++group[1])
        for (group[2] = 0; group[2] < grid.axes[2].dilation; ++group[2]) add_group(grid, group, wide);
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
        problem.batch = strips.texts;
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
        GridStrips& strips = strips_of(q_shape, kv_shape);
        strips.is_row = tokens_ == grid.axes[0].length;
        strips.step = grid.axes[strips.is_row ? 0 : 2].dilation;
        strips.add(grid, group, first, first_kv);
      }
    }
  }

  /// Returns the strips of these shapes. There are few shapes: those inside the grid, and those at the ends of its
  /// dimensions.
  GridStrips& strips_of(const TokenGrid::Coordinates& q_shape, const TokenGrid::Coordinates& kv_shape) {
    for (GridStrips& strips : strips_)
      if (strips.q_shape == q_shape && strips.kv_shape == kv_shape) return strips;
    GridStrips& added = strips_.emplace_back();
    added.q_shape = q_shape, added.kv_shape = kv_shape;
    return added;
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
      gathered += static_cast<double>(strips.texts * strips.queries()) * static_cast<double>(keys);
    }
    return 3 * gathered < 2 * plain * static_cast<double>(tokens_);
  }

  Index tokens_;
  bool pays_ = false;
  std::vector<GridStrips> strips_;
};

}  // namespace attn::detail
