// Type-erased interfaces to the mods of a call and their derivatives, for the tile loops.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/mods/bound_mods.h"
#include "attn/core/mods/dropout_kernels.h"
#include "attn/core/simd/vec.h"
#include "attn/dual.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of weights that mods change.
template <class T>
struct WeightsToChange {
  T* weights;  ///< weights[key * stride + query], to be divided by the query's sum
  Index stride;
  const T* sums;        ///< (queries); null: 1
  const bool* dropped;  ///< laid out as `weights`: pairs whose weight becomes 0
  const Tile& tile;
  T* slopes = nullptr;  ///< laid out as `weights`; null if no derivatives are wanted
};

/// The interface between the loops, which are compiled once per scalar type, and the mods, which are compiled into
/// apply(). One virtual call per tile costs nothing; one per pair would be far too slow.
template <class T>
class TileMods {
 public:
  virtual ~TileMods() = default;

  /// Returns the range of keys worth visiting for the queries of the tile. All other keys are dropped.
  virtual Range kv_range(const Tile& tile) const = 0;

  /// Returns the coverage according to the hints. The predicate of a mask without a hint is evaluated for every pair of
  /// the tile, which costs about 6 / head_dim of the tile's products (measured with a lambda like causal() on AVX-512).
  virtual Coverage coverage(VectorSet vectors, const Tile& tile) const = 0;

  /// Whether scores change even in a tile whose pairs are all kept.
  virtual bool has_scores() const = 0;

  /// Returns the logit whose exponential is added to the denominators of a head's queries, or -inf if there is none.
  virtual double sink(Index head) const = 0;

  /// Replaces scores[key * stride + query] of the tile's pairs with the modded ones, and with -inf for dropped pairs if
  /// `masked`.
  virtual void apply(VectorSet vectors, T* scores, Index stride, const Tile& tile, bool masked) const = 0;

  /// Divides weights by the sums of their queries, and applies the weight mods.
  virtual void change_weights(VectorSet vectors, const WeightsToChange<T>& t) const = 0;

  /// Returns the factor that dropout applies to the weights that it keeps, or 1 without dropout.
  virtual long double kept_factor() const = 0;

  /// Sets the weights of the pairs that dropout drops to 0. `queries` is the number of columns of the tile in memory.
  virtual void drop_weights(VectorSet vectors, T* weights, WeightOrder order, Index queries,
                            const Tile& tile) const = 0;
};

/// The scores that apply() modifies.
template <class T>
struct ScoreTile {
  T* scores;
  Index stride;
  const Tile& tile;
  T* slopes = nullptr;  ///< laid out as `scores`; null if no derivatives are wanted

  /// Returns the scores of `subtile`.
  ScoreTile part(const Tile& subtile) const {
    const Index offset = (subtile.kv.begin - tile.kv.begin) * stride + (subtile.q.begin - tile.q.begin);
    return {scores + offset, stride, subtile, slopes == nullptr ? nullptr : slopes + offset};
  }
};

/// Applies mods, which are written for one pair, to a tile. Compilers vectorise these loops. To that end each loop has
/// a constant trip count (the number of lanes of a vector), stores its results in arrays that nothing can alias, and
/// has no branches. If a loop lacks one of these properties, g++ 12 at -O2 does not vectorise it.
///
/// kSlopes: also computes the derivatives of modded scores, by calling mods with dual numbers.
template <class T, class Mods, int kBytes, bool kSlopes = false>
struct ModLoops {
  using V = Vec<T, kBytes>;
  static constexpr int kLanes = V::kLanes;

  /// Evaluates the predicate for all pairs of a tile, corners first: in most partly kept tiles, the corners already
  /// differ.
  static ATTN_INLINE Coverage examine(const Mods& mods, const Tile& t) {
    const Index last_q = t.q.end - 1, last_kv = t.kv.end - 1;
    const bool kept = mods.keep(Position{t.batch, t.head, t.q.begin, t.kv.begin});
    if (kept != mods.keep(Position{t.batch, t.head, last_q, last_kv}) ||
        kept != mods.keep(Position{t.batch, t.head, t.q.begin, last_kv}) ||
        kept != mods.keep(Position{t.batch, t.head, last_q, t.kv.begin}))
      return Coverage::some;
    // Counts in integers as wide as positions, so that no vector of results has to be narrowed.
    constexpr Index kWide = std::max<Index>(kBytes / static_cast<Index>(sizeof(Index)), 1);
    const Index whole = t.q.size() / kWide * kWide;
    for (Index kv = t.kv.begin; kv < t.kv.end;) {
      const Index first = kv, end = std::min(kv + kSubtileKeys, t.kv.end);
      Array<Index, kWide> counts = {};
      for (; kv < end; ++kv) {
        for (Index i = 0; i < whole; i += kWide) {
          // The inner loop should become one vector operation. Without this barrier g++ -O3 unrolls it, and clang
          // vectorises over `i` with a stride of kWide.
          __asm__("" : "+r"(i));
          ATTN_NO_UNROLL
          for (Index lane = 0; lane < kWide; ++lane)
            counts[lane] += mods.keep(Position{t.batch, t.head, t.q.begin + i + lane, kv});
        }
        for (Index i = whole; i < t.q.size(); ++i) counts[0] += mods.keep(Position{t.batch, t.head, t.q.begin + i, kv});
      }
      Index count = 0;
      for (const Index c : counts) count += c;
      if (count != (kept ? (end - first) * t.q.size() : 0)) return Coverage::some;
    }
    return kept ? Coverage::all : Coverage::none;
  }

  /// Applies the mods subtile by subtile, because most subtiles of a masked tile are entirely kept or dropped.
  static ATTN_INLINE void all_pairs(const Mods& mods, const ScoreTile<T>& t, bool masked) {
    for (Range kv{t.tile.kv.begin, 0}; kv.begin < t.tile.kv.end; kv.begin = kv.end) {
      kv.end = std::min(kv.begin + kSubtileKeys, t.tile.kv.end);
      for (Range q{t.tile.q.begin, 0}; q.begin < t.tile.q.end; q.begin = q.end) {
        q.end = std::min(q.begin + kLanes, t.tile.q.end);
        const Tile subtile{t.tile.batch, t.tile.head, q, kv};
        const Coverage coverage = masked ? mods.coverage(subtile) : Coverage::all;
        if (coverage == Coverage::some)
          pairs_of_subtile<true>(mods, t.part(subtile));
        else if (coverage == Coverage::none)
          drop_subtile(t.part(subtile));
        else if constexpr (Mods::kHasScores)
          pairs_of_subtile<false>(mods, t.part(subtile));
      }
    }
  }

  /// Applies the weight mods, a vector of queries at a time.
  static ATTN_INLINE void all_weights(const Mods& mods, const WeightsToChange<T>& t) {
    const Index size = t.tile.q.size();
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) weights_of<kLanes>(mods, t, i);
    for (; i < size; ++i) weights_of<1>(mods, t, i);
  }

 private:
  /// A subtile has as many keys as an AVX-512 vector has floats, so that a diagonal crosses few of them. Words of masks
  /// have as many bits.
  static constexpr Index kSubtileKeys = 16;

  template <bool kMasked>
  static ATTN_INLINE void pairs_of_subtile(const Mods& mods, const ScoreTile<T>& t) {
    Position p{t.tile.batch, t.tile.head, t.tile.q.begin, 0};
    T *row = t.scores, *slopes = t.slopes;
    const Index step = kSlopes ? t.stride : 0;
    if constexpr (kMasked && Mods::kHasWords)
      if (t.tile.q.size() == kLanes) return words_of_subtile(mods, t);
    if (t.tile.q.size() == kLanes) {
      for (p.kv = t.tile.kv.begin; p.kv < t.tile.kv.end; ++p.kv, row += t.stride, slopes += step)
        pairs<kMasked, kLanes>(mods, row, slopes, p);
      return;
    }
    // Mods only see pairs that exist: a lambda may use the position to index its own memory.
    for (p.kv = t.tile.kv.begin; p.kv < t.tile.kv.end; ++p.kv, row += t.stride, slopes += step)
      for (p.q = t.tile.q.begin; p.q < t.tile.q.end; ++p.q) {
        const Index i = p.q - t.tile.q.begin;
        pairs<kMasked, 1>(mods, row + i, kSlopes ? slopes + i : nullptr, p);
      }
  }

  /// Applies the weight mods to kCount neighbouring queries, the first of which is query i of the tile.
  template <int kCount>
  static ATTN_INLINE void weights_of(const Mods& mods, const WeightsToChange<T>& t, Index i) {
    Array<T, kCount> inverse, w, slope;
    for (int a = 0; a < kCount; ++a) {
      const T sum = t.sums ? t.sums[i + a] : T(1);
      inverse[a] = sum == T(0) ? T(0) : T(1) / sum;  // 0: all pairs of the query are dropped
    }
    Position p{t.tile.batch, t.tile.head, t.tile.q.begin + i, t.tile.kv.begin};
    for (Index at = i; p.kv < t.tile.kv.end; ++p.kv, at += t.stride) {
      for (int a = 0; a < kCount; ++a) {
        const Position pair{p.batch, p.head, p.q + a, p.kv};
        w[a] = unfused(t.weights[at + a] * inverse[a]);
        if constexpr (kSlopes) {
          const Dual<T> y = mods.weight(Dual<T>(w[a], T(1)), pair);
          w[a] = y.value, slope[a] = y.slope;
        } else {
          w[a] = mods.weight(w[a], pair);
        }
      }
      for (int a = 0; a < kCount; ++a) {
        w[a] = t.dropped[at + a] ? T(0) : w[a];
        if constexpr (kSlopes) slope[a] = t.dropped[at + a] ? T(0) : slope[a];
      }
      for (int a = 0; a < kCount; ++a) t.weights[at + a] = w[a];
      for (int a = 0; kSlopes && a < kCount; ++a) t.slopes[at + a] = slope[a];
    }
  }

  /// pairs_of_subtile() for masks that evaluate 16 keys at once.
  static ATTN_INLINE void words_of_subtile(const Mods& mods, const ScoreTile<T>& t) {
    using Int = typename V::Int;
    Position p{t.tile.batch, t.tile.head, t.tile.q.begin, t.tile.kv.begin};
    Array<Int, kLanes> words;
    mods.template words<kLanes>(p, t.tile.kv.size(), words);
    T *row = t.scores, *slopes = t.slopes;
    for (Index j = 0; j < t.tile.kv.size(); ++j, ++p.kv, row += t.stride, slopes += kSlopes ? t.stride : 0) {
      if constexpr (Mods::kHasScores) pairs<false, kLanes>(mods, row, slopes, p);
      const Int bit = static_cast<Int>(Int(1) << j);
      Array<Int, kLanes> kept;
      for (int i = 0; i < kLanes; ++i)
        kept[i] = -static_cast<Int>(mods.keep_beside_words(Position{p.batch, p.head, p.q + i, p.kv})) & words[i] & bit;
      drop_where_zero<V>(row, kept);
    }
  }

  static ATTN_INLINE void drop_subtile(const ScoreTile<T>& t) {
    for (Index j = 0; j < t.tile.kv.size(); ++j)
      std::fill_n(t.scores + j * t.stride, t.tile.q.size(), -std::numeric_limits<T>::infinity());
  }

  /// Applies the mods to kCount neighbouring queries, the first of which is p.q: a vector of queries, or one.
  template <bool kMasked, int kCount>
  static ATTN_INLINE void pairs(const Mods& mods, T* scores, [[maybe_unused]] T* slopes, const Position& p) {
    if constexpr (Mods::kHasScores && kSlopes) {
      Array<T, kCount> x, slope;
      for (int i = 0; i < kCount; ++i) {
        const Dual<T> y = mods.score(Dual<T>(scores[i], T(1)), Position{p.batch, p.head, p.q + i, p.kv});
        x[i] = y.value, slope[i] = y.slope;
      }
      for (int i = 0; i < kCount; ++i) scores[i] = x[i];
      for (int i = 0; i < kCount; ++i) slopes[i] = slope[i];
    } else if constexpr (Mods::kHasScores) {
      Array<T, kCount> x;
      for (int i = 0; i < kCount; ++i) x[i] = mods.score(scores[i], Position{p.batch, p.head, p.q + i, p.kv});
      for (int i = 0; i < kCount; ++i) scores[i] = x[i];
    }
    if constexpr (kMasked && kCount == kLanes) {
      Array<typename V::Int, kLanes> kept;
      for (int i = 0; i < kLanes; ++i)
        kept[i] = -static_cast<typename V::Int>(mods.keep(Position{p.batch, p.head, p.q + i, p.kv}));
      drop_where_zero<V>(scores, kept);
    } else if constexpr (kMasked) {
      if (!mods.keep(p)) *scores = -std::numeric_limits<T>::infinity();
    }
  }
};

template <class T, ModsOfCall Mods>
class TileModsOf final : public TileMods<T> {
 public:
  explicit TileModsOf(const Mods& mods) : mods_(mods) {}

  Range kv_range(const Tile& tile) const override { return mods_.of(tile.batch).kv_range(tile); }
  Coverage coverage(VectorSet vectors, const Tile& tile) const override {
    const Coverage hint = mods_.of(tile.batch).coverage(tile);
    if constexpr (Mods::kIsOpaque)
      if (hint == Coverage::some) return examine(vectors, tile);
    return hint;
  }
  bool has_scores() const override { return Mods::kHasScores; }
  double sink(Index head) const override { return mods_.of(0).sink(head); }

  void apply(VectorSet vectors, T* scores, Index stride, const Tile& tile, bool masked) const override {
    with_vectors<T>(vectors, [&]<VectorSet kSet>() {
      flattened<kSet, Loops<kSet>::all_pairs>(mods_.of(tile.batch), {scores, stride, tile}, masked);
    });
  }

  void change_weights(VectorSet vectors, const WeightsToChange<T>& t) const override {
    if constexpr (Mods::kHasWeights)
      with_vectors<T>(vectors,
                      [&]<VectorSet kSet>() { flattened<kSet, Loops<kSet>::all_weights>(mods_.of(t.tile.batch), t); });
  }

  long double kept_factor() const override { return mods_.of(0).kept_factor(); }
  void drop_weights(VectorSet vectors, T* weights, WeightOrder order, Index queries, const Tile& tile) const override {
    const auto& own = mods_.of(tile.batch);
    // `auto`, so that kernels are compiled only for mods with dropout.
    own.each_dropout([&](const auto& mod) {
      detail::drop_weights(vectors, weights, order, queries, tile.kv.size(), own.grid(tile), mod);
    });
  }

  Coverage examine(VectorSet vectors, const Tile& tile) const {
    return with_vectors<T>(
        vectors, [&]<VectorSet kSet>() { return flattened<kSet, Loops<kSet>::examine>(mods_.of(tile.batch), tile); });
  }

 private:
  template <VectorSet kSet>
  using Loops = ModLoops<T, ModsOfOne<Mods>, kVectorBytes<kSet>>;

  const Mods& mods_;
};

template <class T, class Mods>
using TileModsIfAny = MadeIfAny<TileMods<T>, TileModsOf<T, Mods>, !changes_nothing<Mods>>;

/// TileMods::apply() and change_weights() with derivatives. It is a separate class because it calls mods with dual
/// numbers, which programs without gradients should not have to compile.
template <class T>
class ModSlopes {
 public:
  virtual ~ModSlopes() = default;

  /// Does what TileMods::apply() does, and sets slopes[key * stride + query] to the derivative of the modded score with
  /// respect to the score. The slopes of dropped pairs are unspecified.
  virtual void apply(VectorSet vectors, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const = 0;

  /// Does what TileMods::change_weights() does, and sets t.slopes to the derivatives of the new weights with respect to
  /// the old ones; 0 for dropped pairs.
  virtual void change_weights(VectorSet vectors, const WeightsToChange<T>& t) const = 0;
};

/// The ModSlopes of `mods`, which must outlive it.
template <class T, ModsOfCall Mods>
class ModSlopesOf final : public ModSlopes<T> {
 public:
  explicit ModSlopesOf(const Mods& mods) : mods_(mods) {}

  void apply(VectorSet vectors, T* scores, T* slopes, Index stride, const Tile& tile, bool masked) const override {
    if constexpr (Mods::kHasScores)
      with_vectors<T>(vectors, [&]<VectorSet kSet>() {
        flattened<kSet, Loops<kSet>::all_pairs>(mods_.of(tile.batch), {scores, stride, tile, slopes}, masked);
      });
  }
  void change_weights(VectorSet vectors, const WeightsToChange<T>& t) const override {
    if constexpr (Mods::kHasWeights)
      with_vectors<T>(vectors,
                      [&]<VectorSet kSet>() { flattened<kSet, Loops<kSet>::all_weights>(mods_.of(t.tile.batch), t); });
  }

 private:
  template <VectorSet kSet>
  using Loops = ModLoops<T, ModsOfOne<Mods>, kVectorBytes<kSet>, true>;

  const Mods& mods_;
};

template <class T, class Mods>
using ModSlopesIfAny = MadeIfAny<ModSlopes<T>, ModSlopesOf<T, Mods>, Mods::kHasScores || Mods::kHasWeights>;

}  // namespace attn::detail::inline ATTN_BUILT_FOR
