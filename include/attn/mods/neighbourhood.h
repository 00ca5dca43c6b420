// neighbourhood(): windows on grids of 1 to 3 dimensions.
#pragma once

#include <memory>

#include "attn/core/base/check.h"
#include "attn/core/mods/grouping/grid_strips.h"
#include "attn/core/mods/lengths.h"
#include "attn/lists.h"

namespace attn {

namespace detail {

/// Returns the grid with these sizes. The first given dimension is axis 0 of the grid, along which strips run; missing
/// dimensions have length 1.
inline TokenGrid token_grid(const Indices& shape, const Indices& window, const Indices& dilation,
                            const Indices& causal) {
  constexpr Index kMost = Index(1) << 28;  // tokens; tables take about 100 bytes for each
  const std::size_t rank = shape.values.size();
  require(rank >= 1 && rank <= TokenGrid::kAxes, "neighbourhood: the grid must have 1 to 3 dimensions, but has ", rank);
  const auto fits = [&](const Indices& list, const char* what, bool may_be_left_out) {
    const std::size_t given = list.values.size();
    require(given == rank || (may_be_left_out && given == 0), "neighbourhood: got ", given, " ", what, " for ", rank,
            " dimensions");
  };
  fits(window, "windows", false);
  fits(dilation, "dilations", true);
  fits(causal, "causal flags", true);
  TokenGrid grid;
  Index tokens = 1;
  for (std::size_t d = 0; d < rank; ++d) {
    GridAxis& axis = grid.axes[d == 0 ? 0 : d + TokenGrid::kAxes - rank];
    axis.length = shape.values[d];
    axis.window = window.values[d];
    if (!dilation.values.empty()) axis.dilation = dilation.values[d];
    if (!causal.values.empty()) {
      const Index flag = causal.values[d];
      require(flag == 0 || flag == 1, "neighbourhood: causal flag ", d, " must be 0 or 1, but is ", flag);
      axis.causal = flag == 1;
    }
    require(axis.length > 0 && axis.window > 0 && axis.dilation > 0, "neighbourhood: dimension ", d, " has length ",
            axis.length, ", window ", axis.window, " and dilation ", axis.dilation, "; all must be positive");
    require(axis.dilation <= axis.length && axis.window <= axis.length / axis.dilation, "neighbourhood: dimension ", d,
            " of length ", axis.length, " is too short for a window of ", axis.window, " with dilation ",
            axis.dilation);
    require(axis.length <= kMost / tokens, "neighbourhood: the grid has more than ", kMost, " tokens");
    tokens *= axis.length;
  }
  return grid;
}

/// Returns the mask of neighbourhood(). `always` gathers tokens even where that does not pay off, for tests.
inline auto neighbourhood_of(const TokenGrid& grid, bool always) {
  struct Tables {
    TokenGrid grid;
    WindowTable windows;
    StripGathering strips;
  };
  return bind_mod([tables = std::make_shared<const Tables>(
                       Tables{grid, WindowTable::of_all(grid), StripGathering(grid, always)})](const Problem& problem) {
    const Index tokens = tables->grid.tokens();
    const bool may_have_less = tables->grid.axes[0].causal && !problem.has_part_of_keys;
    require(fits_keys(tokens, problem) || (may_have_less && problem.kv_len < tokens), "neighbourhood: the grid has ",
            tokens, " tokens, but there are ", problem.keys().end, " keys", note_of_part(problem));
    check_positions(tokens, problem, "neighbourhood", "grid covers");
    const auto mask = mask_mod([windows = &tables->windows](const Position& p) { return windows->has(p.q, p.kv); },
                               [g = &tables->grid](const Tile& t) { return g->coverage(t); },
                               [g = &tables->grid](const Tile& t) { return g->kv_range(t.q); });
    return gathered_mask(mask, tables->strips, problem);
  });
}

}  // namespace detail

/// Keeps the keys in a window around each query, for tokens on a grid of 1 to 3 dimensions in row-major order, such as
/// a sequence, an image or a video. In dimension d the window has window[d] keys, dilation[d] apart (neighbourhood
/// attention; Hassani et al. 2023, Hassani and Shi 2022, and their library NATTEN).
///
/// In each dimension, coordinates that are equal modulo the dilation form a group and are numbered within it. Query n
/// of a group of N keeps keys s .. s + window - 1 of the group, where s = n - window / 2 (rounded down), clamped to 0
/// .. N - window: near a border the window is shifted inwards, so that every query keeps the same number of keys. With
/// causal[d] = 1, query n instead keeps the keys n - window + 1 .. n, as far as they exist.
///
///     neighbourhood({2, 4}, {1, 3}):  1 1 1 0 0 0 0 0
///                                     1 1 1 0 0 0 0 0
///                                     0 1 1 1 0 0 0 0
///                                     0 1 1 1 0 0 0 0
///                                     0 0 0 0 1 1 1 0
///                                     0 0 0 0 1 1 1 0
///                                     0 0 0 0 0 1 1 1
///                                     0 0 0 0 0 1 1 1
///
/// In two and three dimensions, a call over a whole grid processes compact pieces of 4 x 4 or 4 x 2 x 2 queries and
/// gathers the keys that they see. Computed pairs are wasted only where the windows of these 16 queries differ (a third
/// of the pairs for a window of 13 x 13). Calls over part of a grid, combined masks such as any_of(), and gradients
/// visit tiles of neighbouring tokens instead. The mod holds tables of about 100 bytes per token, which its copies
/// share.
/// @throws std::invalid_argument unless the lists have the same length, 1 to 3 (the last two may be empty), and window
/// * dilation fits into the shape in each dimension. Also thrown by the attention call, unless there is one key per
/// token (or fewer, if the first dimension is causal) and all queries are on the grid.
inline auto neighbourhood(const Indices& shape, const Indices& window, const Indices& dilation = {},
                          const Indices& causal = {}) {
  return detail::neighbourhood_of(detail::token_grid(shape, window, dilation, causal), false);
}

}  // namespace attn
