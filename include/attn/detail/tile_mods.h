// Layer 2: the mods of a call as the tile loop sees them: three questions, whatever their types.
#pragma once

#include <limits>

#include "attn/mod.h"

namespace attn::detail {

/// The interface between the tile loop, which is compiled once for each scalar type, and the mods, which are compiled
/// into apply(). One virtual call a tile costs nothing; one a pair would cost everything.
template <class T>
class TileMods {
 public:
  virtual ~TileMods() = default;

  /// The keys worth visiting for the queries of the tile; all others are dropped.
  virtual Range kv_range(const Tile& tile) const = 0;

  virtual Coverage coverage(const Tile& tile) const = 0;

  /// Does a tile whose pairs are all kept still have its scores changed?
  virtual bool has_scores() const = 0;

  /// Replaces scores[key * stride + query] of the tile's pairs by the modded ones, times `factor`; -inf for dropped
  /// pairs if `masked`.
  virtual void apply(T* scores, Index stride, const Tile& tile, T factor, bool masked) const = 0;
};

template <class T, class Mods>
class TileModsOf final : public TileMods<T> {
 public:
  explicit TileModsOf(const Mods& mods) : mods_(mods) {}

  Range kv_range(const Tile& tile) const override { return mods_.kv_range(tile); }
  Coverage coverage(const Tile& tile) const override { return mods_.coverage(tile); }
  bool has_scores() const override { return Mods::kHasScores; }

  void apply(T* scores, Index stride, const Tile& tile, T factor, bool masked) const override {
    if (masked)
      apply_to_pairs<true>(scores, stride, tile, factor);
    else
      apply_to_pairs<false>(scores, stride, tile, factor);
  }

 private:
  template <bool kMasked>
  void apply_to_pairs(T* scores, Index stride, const Tile& tile, T factor) const {
    // Only pairs that exist are shown to the mods: a lambda may use the position to index memory of its own.
    Position p{tile.batch, tile.head, 0, 0};
    const Index queries = tile.q.size();
    for (p.kv = tile.kv.begin; p.kv < tile.kv.end; ++p.kv, scores += stride) {
      for (Index i = 0; i < queries; ++i) {
        p.q = tile.q.begin + i;
        T x = scores[i];
        if constexpr (Mods::kHasScores) x = mods_.score(x, p) * factor;
        if constexpr (kMasked) x = mods_.keep(p) ? x : -std::numeric_limits<T>::infinity();
        scores[i] = x;
      }
    }
  }

  const Mods& mods_;
};

}  // namespace attn::detail
