// Kernels for mods and for values that are not finite, shared by tiles of any width.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/kernels/tile_memory.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The width of a tile is an argument here, so that these kernels are compiled once for each instruction set.
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
