// Layer 2: the mods of a call as the tile loop sees them: three questions, whatever their types.
#pragma once

#include <limits>

#include "attn/detail/simd.h"
#include "attn/isa.h"
#include "attn/mod.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

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

  /// Replaces scores[key * stride + query] of the tile's pairs by the modded ones;
  /// -inf for dropped pairs if `masked`.
  virtual void apply(Isa isa, T* scores, Index stride, const Tile& tile, bool masked) const = 0;
};

/// What apply() works on.
template <class T>
struct ScoreTile {
  T* scores;
  Index stride;
  const Tile& tile;
};

/// Mods are written for one pair; the compilers make vectors of the loops below. To that end a loop has a constant
/// number of turns, one vector of them, its results go to arrays that nothing can alias, and it has no branch of its
/// own: g++ 12 at -O2 gives up on less.
template <class T, class Mods, int kBytes>
struct ModLoops {
  using S = Simd<T, kBytes>;
  static constexpr int kLanes = S::kLanes;

  template <bool kMasked>
  static ATTN_INLINE void all_pairs(const Mods& mods, const ScoreTile<T>& t) {
    const Index queries = t.tile.q.size(), whole = queries / kLanes * kLanes;
    Position p{t.tile.batch, t.tile.head, 0, 0};
    for (p.kv = t.tile.kv.begin; p.kv < t.tile.kv.end; ++p.kv) {
      T* row = t.scores + (p.kv - t.tile.kv.begin) * t.stride;
      p.q = t.tile.q.begin;
      for (Index i = 0; i < whole; i += kLanes, p.q += kLanes) vector_of_pairs<kMasked>(mods, row + i, p);
      // Only pairs that exist are shown to the mods: a lambda may use the position to index memory of its own.
      for (Index i = whole; i < queries; ++i, ++p.q) pair<kMasked>(mods, row[i], p);
    }
  }

 private:
  template <bool kMasked>
  static ATTN_INLINE void pair(const Mods& mods, T& x, const Position& p) {
    if constexpr (Mods::kHasScores) x = mods.score(x, p);
    if constexpr (kMasked) x = mods.keep(p) ? x : -std::numeric_limits<T>::infinity();
  }

  template <bool kMasked>
  static ATTN_INLINE void vector_of_pairs(const Mods& mods, T* scores, const Position& p) {
    using Int = typename S::Int;
    if constexpr (Mods::kHasScores) {
      Array<T, kLanes> x;
      for (int i = 0; i < kLanes; ++i) x[i] = mods.score(scores[i], Position{p.batch, p.head, p.q + i, p.kv});
      for (int i = 0; i < kLanes; ++i) scores[i] = x[i];
    }
    if constexpr (kMasked) {
      Array<Int, kLanes> kept;
      for (int i = 0; i < kLanes; ++i) kept[i] = -static_cast<Int>(mods.keep(Position{p.batch, p.head, p.q + i, p.kv}));
      S::drop_where_zero(scores, kept);
    }
  }
};

template <class T, class Mods>
class TileModsOf final : public TileMods<T> {
 public:
  explicit TileModsOf(const Mods& mods) : mods_(mods) {}

  Range kv_range(const Tile& tile) const override { return mods_.kv_range(tile); }
  Coverage coverage(const Tile& tile) const override { return mods_.coverage(tile); }
  bool has_scores() const override { return Mods::kHasScores; }

  void apply(Isa isa, T* scores, Index stride, const Tile& tile, bool masked) const override {
    const ScoreTile<T> t{scores, stride, tile};
#if ATTN_X86
    if (isa == Isa::avx512) return apply_avx512(t, masked);
    if constexpr (kPromisedIsa <= Isa::avx2)
      if (isa == Isa::avx2) return apply_avx2(t, masked);
#endif
    (void)isa;
    if constexpr (kPromisedIsa == Isa::generic) with_bytes<16>(t, masked);
  }

 private:
  template <int kBytes>
  ATTN_INLINE void with_bytes(const ScoreTile<T>& t, bool masked) const {
    using Loops = ModLoops<T, Mods, kBytes>;
    if (masked)
      Loops::template all_pairs<true>(mods_, t);
    else
      Loops::template all_pairs<false>(mods_, t);
  }

#if ATTN_X86
  // `flatten` brings the caller's lambdas in, so that they too are compiled for the instruction set.
  ATTN_TARGET_AVX2 __attribute__((flatten)) void apply_avx2(const ScoreTile<T>& t, bool masked) const {
    with_bytes<32>(t, masked);
  }
  ATTN_TARGET_AVX512 __attribute__((flatten)) void apply_avx512(const ScoreTile<T>& t, bool masked) const {
    with_bytes<64>(t, masked);
  }
#endif

  const Mods& mods_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
