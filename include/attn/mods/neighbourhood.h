// neighbourhood(): windows on grids of one, two or three dimensions.
#pragma once

#include <memory>
#include <utility>

#include "attn/detail/base/check.h"
#include "attn/detail/mods/grouping/grid_strips.h"
#include "attn/detail/mods/lengths.h"
#include "attn/lists.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// A grid with these sizes. The first dimension given is the first of the grid, along which strips run; missing
/// dimensions have length 1.
inline TokenGrid token_grid(const Indices& shape, const Indices& window, const Indices& dilation,
                            const Indices& causal) {
  constexpr Index kMost = Index(1) << 28;  // tokens, each with some 40 bytes in tables
  const std::size_t rank = shape.values.size();
  require(rank >= 1 && rank <= TokenGrid::kAxes, "neighbourhood: a grid has 1 to 3 dimensions, not ", rank);
  const auto fits = [&](const Indices& list, const char* what, bool may_be_left_out) {
    const std::size_t given = list.values.size();
    require(given == rank || (may_be_left_out && given == 0), "neighbourhood: ", given, " ", what, " for ", rank,
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
      require(flag == 0 || flag == 1, "neighbourhood: causal flag ", d, " is ", flag, ", it must be 0 or 1");
      axis.causal = flag == 1;
    }
    require(axis.length > 0 && axis.window > 0 && axis.dilation > 0, "neighbourhood: dimension ", d, " has length ",
            axis.length, ", window ", axis.window, " and dilation ", axis.dilation, "; all must be positive");
    require(axis.dilation <= axis.length && axis.window <= axis.length / axis.dilation, "neighbourhood: dimension ", d,
            " of length ", axis.length, " has no room for a window of ", axis.window, " with dilation ", axis.dilation);
    require(axis.length <= kMost / tokens, "neighbourhood: more than ", kMost, " tokens");
    tokens *= axis.length;
  }
  return grid;
}

/// `always`: tokens are gathered even where it does not pay, for tests.
inline auto neighbourhood_of(const TokenGrid& grid, bool always) {
  struct Tables {
    TokenGrid grid;
    GridWindows windows;
    StripGathering strips;
  };
  return bind_mod([tables = std::make_shared<const Tables>(
                       Tables{grid, GridWindows(grid), StripGathering(grid, always)})](const Problem& problem) {
    const Index tokens = tables->grid.tokens(), first = problem.q_offset;
    const bool may_have_less = tables->grid.axes[0].causal && !problem.has_part_of_keys;
    require(fits_keys(tokens, problem) || (may_have_less && problem.kv_len < tokens), "neighbourhood: the grid has ",
            tokens, " tokens, there are ", problem.keys().end, " keys", note_of_part(problem));
    require(problem.q_len == 0 || (first >= 0 && problem.q_len <= tokens - first),
            "neighbourhood: queries have the positions ", first, "..", first + problem.q_len - 1,
            ", the grid those in 0..", tokens - 1);
    const auto mask = mask_mod([windows = &tables->windows](const Position& p) { return windows->keep(p.q, p.kv); },
                               [g = &tables->grid](const Tile& t) { return g->coverage(t); },
                               [g = &tables->grid](const Tile& t) { return g->kv_range(t.q); });
    return gathered_mask(mask, tables->strips, problem);
  });
}

}  // namespace detail

/// Keeps the keys of a window around each query, for tokens that lie on a grid of 1 to 3 dimensions, numbered in
/// row-major order: a text, an image, a film. In dimension d the window has window[d] keys, `dilation[d]` apart
/// (neighbourhood attention; Hassani et al. 2023, Hassani and Shi 2022, and their NATTEN).
///
/// In each dimension, coordinates that agree modulo the dilation form a group and are numbered within it. A query with
/// the number n of N keeps the numbers s .. s + window - 1 of its group, where s = n - window / 2 (rounded down), but
/// at least 0 and at most N - window: near a border the window is shifted inside, so that every query keeps equally
/// many keys. With causal[d] = 1 it keeps n - window + 1 .. n instead, as far as these exist.
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
/// In two and three dimensions, a call over a whole grid works on compact pieces of it, 4 x 4 or 4 x 2 x 2 queries at a
/// time, and gathers the keys that these see. What a vector of 16 queries computes in vain is what lies between their
/// windows, a third in a window of 13 x 13. Parts of a grid, any_of() and its like, and gradients visit tiles of
/// neighbouring tokens instead. The mod holds tables of some 100 bytes for each token, which its copies share.
/// @throws std::invalid_argument unless the lists are of one length, 1 to 3, and windows times dilations fit into the
/// shape; in the call, unless there is a key for each token (or fewer, where the first dimension is causal) and queries
/// lie on the grid.
inline auto neighbourhood(const Indices& shape, const Indices& window, const Indices& dilation = {},
                          const Indices& causal = {}) {
  return detail::neighbourhood_of(detail::token_grid(shape, window, dilation, causal), false);
}

}  // namespace attn
