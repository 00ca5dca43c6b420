// What the loops of one pass over the queries of a call share.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "attn/detail/base/ranges.h"
#include "attn/detail/flash/choose_kernels.h"
#include "attn/detail/mods/tile_mods.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One pass over the queries of a call. `mods` is null where nothing is changed or dropped. One that resumes takes what
/// stands in out and lse for the result over other keys, and adds its own: these keys weigh as much as one with the score
/// lse and the value out (Dao et al. 2022, section 3.1).
template <class T>
struct PassContext {
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  CallTensors<T> tensors;
  const TileMods<T>* mods;
  ChosenKernels<T> kernels;
  bool resumes;

  /// Is it a sum of weights that some key was kept for, and nothing overflowed in?
  static bool is_sound(T sum) { return sum > T(0) && sum < kInfinity; }

  const Problem& problem() const { return tensors.problem; }
  bool has_scores() const { return mods && mods->has_scores(); }

  /// The keys worth visiting for some queries, and what is kept of a tile of those.
  Range visited(const QueryTile& queries) const {
    const Tile all = tensors.tile_of(queries);
    return mods ? mods->kv_range(all) : all.kv;
  }
  Coverage coverage(const QueryTile& queries, const Range& visited, const Range& keys) const {
    if (intersect(visited, keys).empty()) return Coverage::none;
    return mods ? mods->coverage(kernels.isa, pairs(queries, keys)) : Coverage::all;
  }
  Tile pairs(const QueryTile& queries, const Range& keys) const {
    Tile tile = tensors.tile_of(queries);
    tile.kv = keys;
    return tile;
  }

  /// Maximum and sum of `count` queries before all keys, or after those of the passes before; of `width` with repetitions
  /// of the last.
  void begin(const QueryTile& queries, Index count, Index width, const TileMemory<T>& m) const {
    T *const max = m.max, *const sum = m.sum;
    std::fill_n(m.sum_rest, width, T(0));
    if (!resumes) {
      const T sink = mods ? static_cast<T>(mods->sink(queries.head)) : -kInfinity;
      std::fill_n(max, width, sink);
      std::fill_n(sum, width, sink > -kInfinity ? T(1) : T(0));
      return;
    }
    for (Index i = 0; i < width; ++i) {
      max[i] = tensors.lse(queries.batch, queries.head, queries.rows.begin + std::min(i, count - 1));
      sum[i] = max[i] == -kInfinity ? T(0) : T(1);
    }
  }

  /// The log-sum-exps. A sum of 0 means that no key was kept and there is no sink: -inf.
  void store_lse(const QueryTile& queries, const T* max, const T* sum) const {
    if (tensors.lse.data() == nullptr) return;
    for (Index i = 0; i < queries.rows.size(); ++i)
      tensors.lse(queries.batch, queries.head, queries.rows.begin + i) =
          sum[i] == T(0) ? -kInfinity : max[i] + std::log(sum[i]);
  }
};

/// All keys that some tiles of queries or single ones visit.
template <class Tiles>
Range hull_of_visited(const Tiles& tiles) {
  Range all{0, 0};
  for (const auto& tile : tiles) all = hull(all, tile.visited);
  return all;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
