// Kernels of dropout, which set the weights of a tile's dropped pairs to 0.
#pragma once

#include <algorithm>

#include "attn/core/mods/pair_grid.h"
#include "attn/core/simd/vec.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Memory layout of the weights of a tile.
enum class WeightOrder {
  keys_by_queries,  ///< (keys, queries)
  bf16_pairs,       ///< (keys / 2, queries), 32-bit elements that hold two neighbouring keys each as bf16
  one_query,        ///< (keys)
};

template <class T, int kBytes>
struct DropoutKernels {
  using V = Vec<T, kBytes>;
  static constexpr int kLanes = V::kLanes;
  using Words = typename RawVec<T, 4 * kLanes, std::uint32_t>::type;  // one per lane of a vector of T
  using Kept = typename RawVec<T, 4 * kLanes, std::int32_t>::type;    // lanes of vectors are -1 or 0, scalars 1 or 0

  template <WeightOrder kOrder>
  static ATTN_INLINE void drop(T* weights, Index queries, Index keys, const PairGrid& grid,
                               const DroppedPairs& dropped) {
    if constexpr (kOrder == WeightOrder::one_query)
      drop_of_query(weights, keys, grid, dropped);
    else
      for (Index i = 0; i < queries; i += kLanes)
        drop_of_vector<kOrder == WeightOrder::bf16_pairs>(weights + i, queries, keys, i, grid, dropped);
  }

 private:
  /// Applies dropout to the weights of a vector of queries, the first of which is query i of the grid.
  template <bool kPairs>
  static ATTN_INLINE void drop_of_vector(T* weights, Index stride, Index keys, Index i, const PairGrid& grid,
                                         const DroppedPairs& dropped) {
    const Threefry<Words> generator = dropped.generator<Words>(grid.first);
    const std::uint32_t largest = dropped.largest_dropped();
    Words lower, upper;
    positions(lower, upper, [&](Index lane) { return grid.q(i + lane); });
    for (Index j = 0; j < keys;) {
      const Index kv = grid.kv(j);
      const std::uint64_t four = DroppedPairs::counter(kv);
      Words a = Words{} + DroppedPairs::lower(four), b = Words{} + DroppedPairs::upper(four), c = lower, d = upper;
      generator(a, b, c, d);
      const Index first = kv & 3, count = grid.has_neighbouring_keys() ? std::min(4 - first, keys - j) : 1;
      const auto row = [&](Index word, const Words& random) __attribute__((always_inline)) {
        if (word < first || word >= first + count) return;
        const Index key = j + word - first;
        const Kept kept = random > largest;
        if constexpr (kPairs)
          zero_half(weights + key / 2 * stride, kept, key % 2 == 0);
        else
          zero(weights + key * stride, kept);
      };
      row(0, a), row(1, b), row(2, c), row(3, d);
      j += count;
    }
  }

  /// Applies dropout to the weights of one query. Each lane covers four neighbouring keys.
  static ATTN_INLINE void drop_of_query(T* weights, Index keys, const PairGrid& grid, const DroppedPairs& dropped) {
    if (!grid.has_neighbouring_keys()) {
      for (Index j = 0; j < keys; ++j) {
        Position p = grid.first;
        p.kv = grid.kv(j);
        if (!dropped.keeps(p)) weights[j] *= T(0);
      }
      return;
    }
    const Threefry<Words> generator = dropped.generator<Words>(grid.first);
    const std::uint32_t largest = dropped.largest_dropped();
    const std::uint64_t q = static_cast<std::uint64_t>(grid.first.q);
    // The first group of four keys may begin before the tile.
    for (Index j = -(grid.first.kv & 3); j < keys; j += 4 * kLanes) {
      Words a, b, c = Words{} + DroppedPairs::lower(q), d = Words{} + DroppedPairs::upper(q);
      positions(a, b, [first = (grid.first.kv + j) >> 2](Index lane) { return first + lane; });
      generator(a, b, c, d);
      Array<Words, 4> words = {a, b, c, d};
      const auto* const numbers = reinterpret_cast<const Number*>(words);
      for (Index key = std::max<Index>(j, 0); key < std::min(j + 4 * kLanes, keys); ++key)
        if (numbers[(key - j) % 4 * kLanes + (key - j) / 4] <= largest) weights[key] *= T(0);
    }
  }
  typedef std::uint32_t Number __attribute__((may_alias));

  /// Computes the lower and upper words of the positions that of(lane) returns.
  template <class Of>
  static ATTN_INLINE void positions(Words& lower, Words& upper, const Of& of) {
    Array<std::uint32_t, kLanes> low, high;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t position = static_cast<std::uint64_t>(of(lane));
      low[lane] = DroppedPairs::lower(position), high[lane] = DroppedPairs::upper(position);
    }
    __builtin_memcpy(&lower, low, sizeof(lower));
    __builtin_memcpy(&upper, high, sizeof(upper));
  }

  /// Multiplies dropped weights by 0: finite weights become 0, NaN stays NaN, and infinity becomes NaN.
  static ATTN_INLINE void zero(T* weights, const Kept& kept) {
    const V x = V::load(weights);
    typename V::Mask is_kept;
    if constexpr (!V::kIsVector)
      is_kept.raw = kept != 0;
    else if constexpr (sizeof(T) == 4)
      is_kept.raw = kept;
    else
      is_kept.raw = __builtin_convertvector(kept, typename V::IntRaw);
    select(is_kept, x, x * T(0)).store(weights);
  }
  /// zero() for the lower or upper halves of bf16 pairs, which are finite.
  static ATTN_INLINE void zero_half(T* pairs, const Kept& kept, bool is_lower) {
    const Kept bits = (Kept)V::load(pairs).raw & (kept | (is_lower ? -0x10000 : 0xffff));
    V{(typename V::Raw)bits}.store(pairs);
  }
};

/// Sets the weights of the pairs that `mod` drops to 0.
template <class T>
void drop_weights(VectorSet vectors, T* weights, WeightOrder order, Index queries, Index keys, const PairGrid& grid,
                  const DropoutMod& mod) {
  const DroppedPairs dropped(mod);
  if (dropped.none()) return;
  with_vectors<T>(vectors, [&]<VectorSet kSet>() {
    using Kernels = DropoutKernels<T, kVectorBytes<kSet>>;
    const auto drop = [&]<WeightOrder kOrder>() {
      compiled<kSet, Kernels::template drop<kOrder>>(weights, queries, keys, grid, dropped);
    };
    switch (order) {
      case WeightOrder::keys_by_queries:
        return drop.template operator()<WeightOrder::keys_by_queries>();
      case WeightOrder::one_query:
        return drop.template operator()<WeightOrder::one_query>();
      case WeightOrder::bf16_pairs:
        if constexpr (std::is_same_v<T, float>) return drop.template operator()<WeightOrder::bf16_pairs>();
    }
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
