// Kernels for one tile, one source for all instruction sets.
//
// Lanes run over queries. A tile holds kVectors vectors of queries; everything else is broadcast into them, one element
// at a time:
//
//     query   (head_dim, queries)   scaled, transposed once per tile of queries
//     scores  (keys, queries)       then, in place, the weights
//     out     (v_dim, queries)      not yet divided by the sum
//
// So row maximum, sum and rescaling are lane-wise, and keys and values are read in place, row by row, without packing.
// Register tiles: 3 vectors of queries x 8 keys need 24 sums + 3 + 1 of 32 registers, 3 x 4 need 12 + 3 + 1 of 16; both
// have more independent sums than the 8 to 10 that keep two FMA units with a latency of 4 or 5 busy. With 15 registers
// (WebAssembly) 2 x 4 are 1.5 times as fast as 3 x 4, of which V8 spills four sums, and twice as fast with the FMA of
// relaxed SIMD (Zen 3). SSE2 has no FMA either, but there 2 x 4 took 1.1 times as long with g++ 12, and 0.95 times as
// long with clang 19.
//
// Tried, but slower in the products on AVX-512: two or four steps at a time (g++ 12 then spills a sum or two); row
// pointers computed by min() and a multiplication each (spills as well); prefetching all lines of the next tile at once
// (the loads of this one wait for them). With everything in L1 the products run at 88-91 % of the FMA peak.
//
// On ARM (-O2) a step of the score product takes 38 instructions, 24 of them `fmla` by element, and loads 3 vectors and
// 8 elements; a step of the value product, which prefetches as well, takes 46 with g++ 12 and 44 with clang 14. No sum
// is spilled. With 4 keys at a time, as for 16 registers, the two steps took 22 and 29 instructions, 12 of them `fmla`
// in each. No kernel uses the extensions of newer ARM processors: matrix products of bf16 (bfmmla) and of 8-bit
// integers (smmla), and vectors of a length known only at run time (SVE), which the compilers' vector extension does
// not support. Each would be a separate family in core/kernels/kernel_table.h.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/base/cpu.h"
#include "attn/core/base/ranges.h"
#include "attn/core/kernels/tile_memory.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T, int Bytes, int kRegisters, int kVectors>
struct TileKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kQueries = kVectors * kLanes;
  static constexpr int kRows = kRegisters >= 32 ? 8 : 4;
  static_assert(kVectors <= kWidestTile<kRegisters> && kRows <= kMaxRows);
  static_assert(!V::kIsVector || kRows * kVectors + kVectors + 1 <= kRegisters,
                "one step of a product must fit in registers");
  static_assert(kKeyTile % kRows == 0, "scores are stored kRows keys at a time");
  static_assert(!V::kIsVector || kAlignment % Bytes == 0, "vectors in a tile's memory must not cross cache lines");

  /// scores = keys * query, and the maximum over the keys of each query.
  static ATTN_INLINE void score(const TileMemory<T>& m, Rows<T> key, Index keys, Index head_dim) {
    // The maximum stays in memory during the product, because the register tile leaves no register for it.
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      V::broadcast(-std::numeric_limits<T>::infinity()).store(m.tile_max + v * kLanes);
    }
    Index j = 0;
    for (; keys - j > kRows / 2; j += kRows) score_keys<kRows>(m, key, j, keys, head_dim);
    if (j < keys) score_keys<kRows / 2>(m, key, j, keys, head_dim);
  }

  /// One step of the online softmax (Milakov & Gimelshein 2018, algorithm 3): turns scores into weights and updates
  /// max, sum and rescale. Returns whether any maximum moved, in which case `out` must be rescaled.
  static ATTN_INLINE bool softmax(const TileMemory<T>& m, Index keys, Rows<T> value, Index v_dim) {
    const V infinity = V::broadcast(std::numeric_limits<T>::infinity());
    V rise{};
    Array<V, kVectors> old, highest;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      old[v] = V::load(m.max + v * kLanes);
      highest[v] = max(V::load(m.tile_max + v * kLanes), old[v]);
      rise = max(highest[v] - old[v], rise);  // NaN where both are -inf
    }
    const bool moved = rise.largest() > T(0);
    if (moved) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) highest[v].store(m.max + v * kLanes);
    }
    // A query that has kept no key yet has max -inf, and -inf - -inf is NaN. Its scores are taken relative to 0
    // instead, where e^-inf is the right weight.
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) highest[v] = select(highest[v] == -infinity, V{}, highest[v]);
    if (moved) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        const V rescale = exp(old[v] - highest[v]);
        rescale.store(m.rescale + v * kLanes);
        for (T* numbers : {m.sum, m.sum_rest}) {
          (V::load(numbers + v * kLanes) * rescale).store(numbers + v * kLanes);
        }
      }
    }
    // Sums sixteen weights at a time, then those sums over a tile, then the sums of all tiles.
    T *const scores = m.scores, *const tile_sum = m.tile_sum;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) V{}.store(tile_sum + v * kLanes);
    // Meanwhile, values are prefetched into L1 if they fit.
    const Index fetched = kPrefetches && keys * v_dim <= kMostFetched ? v_dim : 0;
    for (Index j = 0; j < keys;) {
      Array<V, kVectors> sum = {};
      for (const Index end = std::min<Index>(j + kSummedKeys, keys); j < end; ++j) {
        for (Index c = 0; c < fetched; c += kLine) __builtin_prefetch(value.data + j * value.stride + c);
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const V x = exp(V::load(scores + j * kQueries + v * kLanes) - highest[v]);
          sum[v] += x;
          x.store(scores + j * kQueries + v * kLanes);
        }
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        sum[v] += V::load(tile_sum + v * kLanes);
        sum[v].store(tile_sum + v * kLanes);
      }
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      V sum = V::load(m.sum + v * kLanes), rest = V::load(m.sum_rest + v * kLanes);
      add_exactly(sum, rest, V::load(tile_sum + v * kLanes));
      sum.store(m.sum + v * kLanes);
      rest.store(m.sum_rest + v * kLanes);
    }
    return moved;
  }

  /// out = values^T * weights, plus the previous out as `update` says.
  static ATTN_INLINE void value(const TileMemory<T>& m, Rows<T> value, Index keys, Index v_dim, OutUpdate update,
                                const PrefetchPlan& ahead) {
    const Index whole = v_dim / kRows * kRows;
    for (Index c = 0; c < whole; c += kRows)
      add_columns(m, {value.data + c, value.stride}, keys, m.out + c * kQueries, update, Lines(ahead, c, keys),
                  [](int a) { return a; });
    // Past the end, the last column is repeated; its sums are not used.
    if (whole < v_dim)
      add_columns(m, {value.data + whole, value.stride}, keys, m.out + whole * kQueries, update,
                  Lines(ahead, whole, keys), [last = v_dim - 1 - whole](int a) { return std::min<Index>(a, last); });
  }

 private:
  /// Computes the scores of kKeys keys from `j` on, and updates tile_max.
  template <int kKeys>
  static ATTN_INLINE void score_keys(const TileMemory<T>& m, Rows<T> key, Index j, Index keys, Index head_dim) {
    // Past the end, the last key is repeated: it changes no maximum, and its scores are not used.
    Array<const T*, kKeys> row;
    row[0] = key.data + j * key.stride;
    ATTN_UNROLL for (int a = 1; a < kKeys; ++a) row[a] = row[a - 1] + (j + a < keys ? key.stride : 0);
    Array<Array<V, kVectors>, kKeys> sum = {};
    for (Index d = 0; d < head_dim; ++d) {
      Array<V, kVectors> q;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) q[v] = V::load(m.query + d * kQueries + v * kLanes);
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
        const T k = row[a][d];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[a][v] += q[v] * k;
        if (a + 1 < kKeys) sum[a][0].form_before(row[a + 1]);
      }
    }
    T* const scores = m.scores + j * kQueries;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      V highest = V::load(m.tile_max + v * kLanes);
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
        highest = max(highest, sum[a][v]);
        sum[a][v].store(scores + a * kQueries + v * kLanes);
      }
      highest.store(m.tile_max + v * kLanes);
    }
  }

  static constexpr Index kLine = kCacheLine / static_cast<Index>(sizeof(T));  // elements in a cache line
  static constexpr Index kMostFetched =
      32 * 1024 / static_cast<Index>(sizeof(T));  // elements, for an L1 cache of 32 or 48 KiB

  /// The lines to prefetch during the product of some columns of values: one per key, so that requests to memory are
  /// spread evenly. The blocks of the plan take turns. Rows are prefetched one after the other. Prefetching the same
  /// line of all rows made the product 20 to 40 % slower with rows 2 KiB apart.
  class Lines {
   public:
    ATTN_INLINE Lines(const PrefetchPlan& ahead, Index column, Index keys) {
      if (!kPrefetches) return;
      const Index group = column / kRows;
      const auto& [data, stride, width] = ahead.block[group % PrefetchPlan::kBlocks];
      const Index before = group / PrefetchPlan::kBlocks * keys;
      per_row_ = ceil_div(width, kStep);
      const Index row = before / per_row_, in_row = before - row * per_row_;
      left_ = per_row_ - in_row;
      next_ = data + row * stride + in_row * kStep;
      to_next_row_ = stride - per_row_ * kStep;
    }
    ATTN_INLINE void fetch_one() {
      if (!kPrefetches) return;
      __builtin_prefetch(next_, 0, 2);  // not into L1, which the current tile fills
      next_ += kStep;
      if (--left_ == 0) {
        next_ += to_next_row_;
        left_ = per_row_;
      }
    }

   private:
    // During one tile, two tiles of rows as wide as the values are prefetched. For double on AVX-512, a step is two
    // lines, and the processor fetches the second with the first.
    static constexpr Index kStep = std::max<Index>(64, 2 * kRows * static_cast<Index>(sizeof(T)));

    const std::byte* next_;
    Index left_;  // of this row
    Index per_row_;
    Index to_next_row_;
  };

  /// Computes kRows columns of value(), which are at `offset(0)`, `offset(1)`, … of each row.
  template <class Offset>
  static ATTN_INLINE void add_columns(const TileMemory<T>& m, Rows<T> value, Index keys, T* out, OutUpdate update,
                                      Lines lines, const Offset& offset) {
    Array<Array<V, kVectors>, kRows> sum = {};
    const T *weights = m.weights, *row = value.data;
    for (Index j = 0; j < keys; ++j, weights += kQueries, row += value.stride) {
      lines.fetch_one();
      Array<V, kVectors> w;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) w[v] = V::load(weights + v * kLanes);
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
        const T x = row[offset(a)];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[a][v] += w[v] * x;
        sum[a][0].form_before(row);
      }
    }
    if (update == OutUpdate::add) {
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) { sum[a][v] += V::load(out + a * kQueries + v * kLanes); }
      }
    } else if (update == OutUpdate::rescale_and_add) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        const V factor = V::load(m.rescale + v * kLanes);
        ATTN_UNROLL for (int a = 0; a < kRows; ++a) { sum[a][v] += V::load(out + a * kQueries + v * kLanes) * factor; }
      }
    }
    ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[a][v].store(out + a * kQueries + v * kLanes);
    }
  }
};

/// Kernels for mods and for values that are not finite, shared by tiles of any width. The width is an argument here, so
/// that they are compiled once for each instruction set.
template <class T, int Bytes>
struct MaskedKernels {
  using V = Vec<T, Bytes>;
  static constexpr Index kLanes = V::kLanes;

  /// Computes tile_max from the scores in memory, after mods changed them.
  static ATTN_INLINE void find_max(const TileMemory<T>& m, Index queries, Index keys) {
    Index i = 0;
    for (; i + kLanes <= queries; i += kLanes) {
      // Four independent maxima take a quarter of the time of one, which is a chain of dependent operations.
      constexpr int kAtATime = 4;
      Array<V, kAtATime> highest;
      ATTN_UNROLL for (int a = 0; a < kAtATime; ++a) highest[a] = V::broadcast(-std::numeric_limits<T>::infinity());
      Index j = 0;
      for (; j + kAtATime <= keys; j += kAtATime) ATTN_UNROLL for (int a = 0; a < kAtATime; ++a) {
          highest[a] = max(highest[a], V::load(m.scores + (j + a) * queries + i));
        }
      for (; j < keys; ++j) highest[0] = max(highest[0], V::load(m.scores + j * queries + i));
      ATTN_UNROLL for (int a = 1; a < kAtATime; ++a) highest[0] = max(highest[0], highest[a]);
      highest[0].store(m.tile_max + i);
    }
    for (; i < queries; ++i) {
      T max = -std::numeric_limits<T>::infinity();
      for (Index j = 0; j < keys; ++j) max = std::max(max, m.scores[j * queries + i]);
      m.tile_max[i] = max;
    }
  }

  /// Whether all values of the tile are finite. x - x is 0 for a finite x and NaN for any other.
  static ATTN_INLINE bool all_finite(Rows<T> value, Index keys, Index v_dim) {
    V sum{};
    T rest = 0;
    for (Index j = 0; j < keys; ++j) {
      const T* row = value.data + j * value.stride;
      Index c = 0;
      for (; c + kLanes <= v_dim; c += kLanes) {
        const V x = V::load(row + c);
        sum += x - x;
      }
      for (; c < v_dim; ++c) rest += row[c] - row[c];
    }
    Array<T, kLanes> lanes;
    sum.store(lanes);
    for (const T lane : lanes) rest += lane;
    return rest == T(0);
  }

  /// Finds which pairs of the tile are dropped. Must run before softmax() overwrites the scores.
  static ATTN_INLINE void find_dropped(const TileMemory<T>& m, Index queries, Index keys) {
    for (Index i = 0; i < keys * queries; ++i) m.dropped[i] = m.scores[i] == -std::numeric_limits<T>::infinity();
  }

  /// value() that skips dropped pairs instead of multiplying them by 0, because 0 * NaN is NaN. Slow, and needed only
  /// if a value is not finite.
  static ATTN_INLINE void value_by_selection(const TileMemory<T>& m, Index queries, Rows<T> value, Index keys,
                                             Index v_dim, OutUpdate update) {
    for (Index c = 0; c < v_dim; ++c) {
      T* out = m.out + c * queries;
      for (Index i = 0; i < queries; ++i) {
        T sum = 0;
        for (Index j = 0; j < keys; ++j)
          if (!m.dropped[j * queries + i])
            sum = V::multiply_add_one(m.weights[j * queries + i], value.data[j * value.stride + c], sum);
        if (update != OutUpdate::overwrite)
          sum = update == OutUpdate::add ? sum + out[i] : V::multiply_add_one(out[i], m.rescale[i], sum);
        out[i] = sum;
      }
    }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
