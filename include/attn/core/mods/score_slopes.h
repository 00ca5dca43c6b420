// The derivatives of the score mods of a call, tile by tile.
#pragma once

#include "attn/core/mods/tile_mods.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// TileMods::apply() with derivatives. It is a separate class because it calls mods with dual numbers, which programs
/// without gradients should not have to compile.
template <class T>
class ScoreSlopes {
 public:
  virtual ~ScoreSlopes() = default;

  /// Does what TileMods::apply() does, and sets slopes[key * stride + query] to the derivative of the modded score with
  /// respect to the score. The slopes of dropped pairs are unspecified.
  virtual void apply(VectorSet vectors, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const = 0;
};

/// The ScoreSlopes of `mods`, which must outlive it.
template <class T, ModsOfCall Mods>
class ScoreSlopesOf final : public ScoreSlopes<T> {
 public:
  explicit ScoreSlopesOf(const Mods& mods) : mods_(mods) {}

  void apply(VectorSet vectors, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const override {
    with_vectors<T>(vectors, [&]<VectorSet kSet>() {
      using Own = std::remove_cvref_t<decltype(mods_.of(tile.batch))>;
      using Loops = ModLoops<T, Own, kVectorBytes<kSet>, true>;
      CompiledMods<kSet, Loops>::all_pairs(mods_.of(tile.batch), ScoreTile<T>{scores, stride, tile, slopes}, masked);
    });
  }

 private:
  const Mods& mods_;
};

template <class T, class Mods>
using ScoreSlopesIfAny = MadeIfAny<ScoreSlopes<T>, ScoreSlopesOf<T, Mods>, Mods::kHasScores>;

}  // namespace attn::detail::inline ATTN_BUILT_FOR
