// The derivatives of the score mods of a call, tile by tile.
#pragma once

#include "attn/detail/mods/tile_mods.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What TileMods::apply() does, with derivatives. Apart from it, because it calls mods with dual numbers: a program that asks
/// for no gradient does not compile that.
template <class T>
class ScoreSlopes {
 public:
  virtual ~ScoreSlopes() = default;

  /// As TileMods::apply(), and slopes[key * stride + query] becomes what the modded score grows by with the score. Nothing is
  /// said of the slopes of dropped pairs.
  virtual void apply(Isa isa, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const = 0;
};

/// `mods` must live as long.
template <class T, class Mods>
class ScoreSlopesOf final : public ScoreSlopes<T> {
 public:
  explicit ScoreSlopesOf(const Mods& mods) : mods_(mods) {}

  void apply(Isa isa, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const override {
    const ScoreTile<T> t{scores, stride, tile, slopes};
#if ATTN_X86
    if (isa >= Isa::avx512) return apply_avx512(t, masked);
    if constexpr (kPromisedIsa <= Isa::avx2)
      if (isa == Isa::avx2) return apply_avx2(t, masked);
#endif
    (void)isa;
    if constexpr (kPromisedIsa == Isa::generic) with_bytes<16>(t, masked);
  }

 private:
  using Own = std::remove_cvref_t<decltype(std::declval<const Mods&>().of(0))>;

  template <int kBytes>
  ATTN_INLINE void with_bytes(const ScoreTile<T>& t, bool masked) const {
    ModLoops<T, Own, kBytes, true>::all_pairs(mods_.of(t.tile.batch), t, masked);
  }
#if ATTN_X86
  // As in TileModsOf.
  ATTN_TARGET_AVX2 __attribute__((flatten, noinline)) void apply_avx2(const ScoreTile<T>& t, bool masked) const {
    with_bytes<32>(t, masked);
  }
  ATTN_TARGET_AVX512 __attribute__((flatten, noinline)) void apply_avx512(const ScoreTile<T>& t, bool masked) const {
    with_bytes<64>(t, masked);
  }
#endif

  const Mods& mods_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
