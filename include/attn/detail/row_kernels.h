// Layer 2: the kernels for a tile of one query, as when one token is decoded. Same duties as TileKernels, other lanes:
// along head_dim in the score product, along keys in the softmax, along v_dim in the value product. Keys and values are
// read once, at the speed of memory.
#pragma once

#include "attn/detail/kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T, int Bytes>
struct RowKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr Index kQueries = 1;
  static_assert(kKeyTile % kLanes == 0, "whole vectors of scores are stored");

  /// As many keys at a time as a vector has lanes: their products with the query are summed lane by lane, then a
  /// transpose turns kLanes vectors to be summed across into vectors to be summed.
  static ATTN_INLINE void score(const TileMemory<T>& m, Rows<T> key, Index keys, Index head_dim) {
    Vec max;
    S::splat(max, -std::numeric_limits<T>::infinity());
    for (Index j = 0; j < keys; j += kLanes) {
      Array<const T*, kLanes> row;
      Array<Vec, kLanes> sum = {};
      Array<T, kLanes> rest = {};
      ATTN_UNROLL for (int a = 0; a < kLanes; ++a) row[a] = key.data + std::min<Index>(j + a, keys - 1) * key.stride;
      Index d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) {
        Vec q, k;
        S::load(q, m.query + d);
        ATTN_UNROLL for (int a = 0; a < kLanes; ++a) {
          S::load(k, row[a] + d);
          sum[a] += q * k;
        }
      }
      for (; d < head_dim; ++d)
        for (int a = 0; a < kLanes; ++a) rest[a] += m.query[d] * row[a][d];
      S::transpose(sum);
      Vec total;
      S::load(total, rest);
      ATTN_UNROLL for (int a = 0; a < kLanes; ++a) total += sum[a];
      S::store(m.scores + j, total);
      S::max_with(max, total);
    }
    store_max(m, max);
  }

  static ATTN_INLINE bool softmax(const TileMemory<T>& m, Index keys, Rows<T>, Index) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const T old = *m.max, max = old > *m.tile_max ? old : *m.tile_max;
    const T from = max == -kInfinity ? T(0) : max;  // as in TileKernels::softmax
    Vec sum = {}, x;
    S::splat(x, old - from);
    S::exp(x);
    Array<T, kLanes> lanes;
    S::store(lanes, x);
    *m.rescale = lanes[0];
    *m.max = max;
    // The last vector may reach past the keys; what lies there must weigh nothing.
    for (Index j = keys; j % kLanes != 0; ++j) m.scores[j] = -kInfinity;
    for (Index j = 0; j < keys; j += kLanes) {
      S::load(x, m.scores + j);
      x -= from;
      S::exp(x);
      sum += x;
      S::store(m.scores + j, x);
    }
    S::store(lanes, sum);
    T total = 0;
    for (int a = 0; a < kLanes; ++a) total += lanes[a];
    *m.sum = *m.sum * *m.rescale + total;
    return max != old;
  }

  static ATTN_INLINE void value(const TileMemory<T>& m, Rows<T> value, Index keys, Index v_dim, Carry carry,
                                const FetchAhead&) {
    const T factor = carry == Carry::zero ? T(0) : *m.rescale;
    if (carry == Carry::zero) std::fill_n(m.out, v_dim, T(0));
    Index c = 0;
    for (; c + 4 * kLanes <= v_dim; c += 4 * kLanes) columns<4>(m, value, keys, c, factor);
    for (; c + kLanes <= v_dim; c += kLanes) columns<1>(m, value, keys, c, factor);
    for (; c < v_dim; ++c) {
      T sum = m.out[c] * factor;
      for (Index j = 0; j < keys; ++j) sum += m.scores[j] * value.data[j * value.stride + c];
      m.out[c] = sum;
    }
  }

 private:
  /// kWidth vectors of columns. Even and odd keys have sums of their own, so that their additions do not wait for each
  /// other.
  template <int kWidth>
  static ATTN_INLINE void columns(const TileMemory<T>& m, Rows<T> value, Index keys, Index c, T factor) {
    Array<Vec, kWidth> even, odd = {};
    ATTN_UNROLL for (int v = 0; v < kWidth; ++v) {
      S::load(even[v], m.out + c + v * kLanes);
      even[v] *= factor;
    }
    const T* row = value.data + c;
    Index j = 0;
    for (; j + 2 <= keys; j += 2, row += 2 * value.stride) {
      ATTN_UNROLL for (int v = 0; v < kWidth; ++v) {
        Vec x, y;
        S::load(x, row + v * kLanes);
        S::add_product(even[v], x, m.scores[j]);
        S::load(y, row + value.stride + v * kLanes);
        S::add_product(odd[v], y, m.scores[j + 1]);
      }
    }
    ATTN_UNROLL for (int v = 0; v < kWidth; ++v) {
      if (j < keys) {
        Vec x;
        S::load(x, row + v * kLanes);
        S::add_product(even[v], x, m.scores[j]);
      }
      even[v] += odd[v];
      S::store(m.out + c + v * kLanes, even[v]);
    }
  }

  static ATTN_INLINE void store_max(const TileMemory<T>& m, const Vec& max) {
    Array<T, kLanes> lanes;
    S::store(lanes, max);
    T all = lanes[0];
    for (int a = 1; a < kLanes; ++a) all = all > lanes[a] ? all : lanes[a];
    *m.tile_max = all;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
