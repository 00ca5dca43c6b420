// Layer 2: the kernels of one tile, one text for all instruction sets.
//
// Lanes run over queries. A tile holds kVectors vectors of queries, everything else is broadcast into them one number
// at a time:
//
//     query   (head_dim, queries)   scaled, transposed once per tile of queries
//     scores  (keys, queries)       then, in place, the weights
//     out     (v_dim, queries)      not yet divided by the sum
//
// so that row maximum, sum and rescaling are lane-wise, and keys and values are read in place, row by row, without
// packing. Register tiles: 3 vectors of queries x 8 keys need 24 sums + 3 + 1 of 32 registers, 3 x 4 need 12 + 3 + 1 of
// 16; both have more independent sums than the 8 to 10 that two FMA units with a latency of 4 or 5 keep busy.
#pragma once

#include "attn/detail/simd.h"

namespace attn::detail {

/// Keys in a tile: long enough to amortise the passes over `out`, short enough for query, scores and out to stay in the
/// L1 cache at head_dim 64.
constexpr Index kKeyTile = 64;

/// Most vectors of queries in a tile.
constexpr int kMaxVectors = 3;

/// Rows of keys (score tile) or columns of values (value tile) that a kernel reads at a time. Buffers are padded to a
/// multiple of the largest.
constexpr Index kMaxRows = 8;
constexpr Index padded_rows(Index n) { return (n + kMaxRows - 1) / kMaxRows * kMaxRows; }

/// The working memory of one tile of queries; see the top of this file for the layouts. All rows are `queries` wide.
template <class T>
struct TileMemory {
  T* query;
  T* scores;
  T* out;
  T* max;           ///< of each query's scores so far
  T* sum;           ///< of e^(score - max) so far
  T* tile_max;      ///< of the scores of the present tile
  T* rescale;       ///< e^(old max - new max)
  T* packed_key;    ///< (keys, head_dim), where the caller's rows are not packed
  T* packed_value;  ///< (keys, v_dim), likewise
  bool* dropped;    ///< (keys, queries), only used next to values that are not finite
};

/// Rows of keys or values in the user's memory, their elements next to each other.
template <class T>
struct Rows {
  const T* data;
  Index stride;
};

/// What tiles of any width share: the work around mods and values that are not finite. The width is a number here, so
/// that this is compiled once for each instruction set.
template <class T, int Bytes>
struct CommonKernels {
  using S = Simd<T, Bytes>;

  /// Copies rows of any strides behind each other, as the other kernels read them. Columns that lie next to each
  /// other, as in a column-major matrix, are transposed in registers.
  static ATTN_INLINE void pack_rows(const T* from, Index row_stride, Index column_stride, Index rows, Index columns,
                                    T* to) {
    constexpr Index kLanes = S::kLanes;
    const Index whole_rows = row_stride == 1 ? rows / kLanes * kLanes : 0;
    const Index whole_columns = columns / kLanes * kLanes;
    for (Index r = 0; r < whole_rows; r += kLanes) {
      for (Index c = 0; c < whole_columns; c += kLanes) {
        Array<typename S::Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::load(square[i], from + r + (c + i) * column_stride);
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::store(to + (r + i) * columns + c, square[i]);
      }
    }
    for (Index r = 0; r < rows; ++r)
      for (Index c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
        to[r * columns + c] = from[r * row_stride + c * column_stride];
  }

  /// tile_max from the scores in memory, after mods changed them.
  static ATTN_INLINE void find_max(const TileMemory<T>& m, Index queries, Index keys) {
    Index i = 0;
    for (; i + S::kLanes <= queries; i += S::kLanes) {
      typename S::Vec max, x;
      S::splat(max, -std::numeric_limits<T>::infinity());
      for (Index j = 0; j < keys; ++j) {
        S::load(x, m.scores + j * queries + i);
        S::max_with(max, x);
      }
      S::store(m.tile_max + i, max);
    }
    for (; i < queries; ++i) {
      T max = -std::numeric_limits<T>::infinity();
      for (Index j = 0; j < keys; ++j) max = std::max(max, m.scores[j * queries + i]);
      m.tile_max[i] = max;
    }
  }

  /// Are all values of the tile finite? x - x is 0 for a finite x and NaN for any other.
  static ATTN_INLINE bool all_finite(Rows<T> value, Index keys, Index v_dim) {
    typename S::Vec sum = {}, x;
    T rest = 0;
    for (Index j = 0; j < keys; ++j) {
      const T* row = value.data + j * value.stride;
      Index c = 0;
      for (; c + S::kLanes <= v_dim; c += S::kLanes) {
        S::load(x, row + c);
        sum += x - x;
      }
      for (; c < v_dim; ++c) rest += row[c] - row[c];
    }
    return !S::any_differs(sum, typename S::Vec{}) && rest == T(0);
  }

  /// Which pairs of the tile are dropped; to be asked before softmax() overwrites the scores.
  static ATTN_INLINE void find_dropped(const TileMemory<T>& m, Index queries, Index keys) {
    for (Index i = 0; i < keys * queries; ++i) m.dropped[i] = m.scores[i] == -std::numeric_limits<T>::infinity();
  }

  /// As value(), but a dropped pair is not even multiplied: 0 * NaN is NaN. Slow, and only needed where a value is not
  /// finite.
  static ATTN_INLINE void value_by_selection(const TileMemory<T>& m, Index queries, Rows<T> value, Index keys,
                                             Index v_dim) {
    for (Index c = 0; c < v_dim; ++c) {
      T* out = m.out + c * queries;
      for (Index i = 0; i < queries; ++i) out[i] *= m.rescale[i];
      for (Index j = 0; j < keys; ++j) {
        const T x = value.data[j * value.stride + c];
        for (Index i = 0; i < queries; ++i)
          if (!m.dropped[j * queries + i]) out[i] += m.scores[j * queries + i] * x;
      }
    }
  }
};

template <class T, int Bytes, int kRegisters, int kVectors>
struct TileKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr Index kQueries = kVectors * kLanes;
  static constexpr int kRows = kRegisters >= 32 ? 8 : 4;

  /// query = factor * rows, transposed. Lanes beyond the last row repeat it.
  static ATTN_INLINE void load_query(const TileMemory<T>& m, Rows<T> from, Index rows, Index head_dim, T factor) {
    for (int v = 0; v < kVectors; ++v) {
      const auto row = [&](int i) { return from.data + std::min<Index>(v * kLanes + i, rows - 1) * from.stride; };
      T* to = m.query + v * kLanes;
      Index d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) {
        Array<Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          S::load(square[i], row(i) + d);
          square[i] *= factor;
        }
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::store(to + (d + i) * kQueries, square[i]);
      }
      for (; d < head_dim; ++d)
        for (int i = 0; i < kLanes; ++i) to[d * kQueries + i] = row(i)[d] * factor;
    }
  }

  /// rows = out / sum, transposed back; 0 where nothing was kept.
  static ATTN_INLINE void store_out(const TileMemory<T>& m, T* to, Index stride, Index rows, Index v_dim) {
    for (int v = 0; v < kVectors; ++v) {
      const T* from = m.out + v * kLanes;
      T* first = to + v * kLanes * stride;
      const Index count = std::min<Index>(rows - v * kLanes, kLanes);
      Vec sum, inverse;
      S::load(sum, m.sum + v * kLanes);
      inverse = T(1) / sum;
      inverse = sum == Vec{} ? Vec{} : inverse;
      Index c = 0;
      for (; c + kLanes <= v_dim; c += kLanes) {
        Array<Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          S::load(square[i], from + (c + i) * kQueries);
          square[i] *= inverse;
        }
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          if (i < count) S::store(first + i * stride + c, square[i]);
        }
      }
      Array<T, kLanes> factor;
      S::store(factor, inverse);
      for (; c < v_dim; ++c)
        for (Index i = 0; i < count; ++i) first[i * stride + c] = from[c * kQueries + i] * factor[i];
    }
  }

  /// scores = keys * query, and the maximum over the keys of each query.
  static ATTN_INLINE void score(const TileMemory<T>& m, Rows<T> key, Index keys, Index head_dim) {
    // The maximum waits in memory while the product runs: the register tile leaves no room for it.
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      Vec lowest;
      S::splat(lowest, -std::numeric_limits<T>::infinity());
      S::store(m.tile_max + v * kLanes, lowest);
    }
    for (Index j = 0; j < keys; j += kRows) {
      // Past the end the last key stands in: it changes no maximum, and nobody reads its scores.
      Array<const T*, kRows> row;
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) row[a] = key.data + std::min<Index>(j + a, keys - 1) * key.stride;
      Array<Array<Vec, kVectors>, kRows> sum = {};
      for (Index d = 0; d < head_dim; ++d) {
        Array<Vec, kVectors> q;
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::load(q[v], m.query + d * kQueries + v * kLanes);
        ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
          const T k = row[a][d];
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::add_product(sum[a][v], q[v], k);
        }
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vec max;
        S::load(max, m.tile_max + v * kLanes);
        ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
          S::max_with(max, sum[a][v]);
          S::store(m.scores + (j + a) * kQueries + v * kLanes, sum[a][v]);
        }
        S::store(m.tile_max + v * kLanes, max);
      }
    }
  }

  /// One step of the online softmax (Milakov & Gimelshein 2018, algorithm 3): scores become weights, max, sum and
  /// rescale are brought up to date. Returns whether any maximum moved, so that `out` must be rescaled.
  static ATTN_INLINE bool softmax(const TileMemory<T>& m, Index keys) {
    Vec infinity;
    Array<Vec, kVectors> max, sum;
    S::splat(infinity, std::numeric_limits<T>::infinity());
    bool moved = false;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      Vec old;
      S::load(old, m.max + v * kLanes);
      S::load(max[v], m.tile_max + v * kLanes);
      S::max_with(max[v], old);
      S::store(m.max + v * kLanes, max[v]);
      moved |= S::any_differs(max[v], old);
      // A query that has kept no key yet has max -inf, and -inf - -inf is NaN: measure from 0 instead, 2^-inf is the
      // right weight.
      max[v] = max[v] == -infinity ? Vec{} : max[v];
      Vec rescale = old - max[v];
      S::exp(rescale);
      S::store(m.rescale + v * kLanes, rescale);
      S::load(sum[v], m.sum + v * kLanes);
      sum[v] *= rescale;
    }
    for (Index j = 0; j < keys; ++j) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vec x;
        S::load(x, m.scores + j * kQueries + v * kLanes);
        x -= max[v];
        S::exp(x);
        sum[v] += x;
        S::store(m.scores + j * kQueries + v * kLanes, x);
      }
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::store(m.sum + v * kLanes, sum[v]);
    return moved;
  }

  /// out = out * rescale + values^T * weights; without the product by rescale where no maximum moved.
  static ATTN_INLINE void value(const TileMemory<T>& m, Rows<T> value, Index keys, Index v_dim, bool rescale) {
    for (Index c = 0; c < v_dim; c += kRows) {
      Array<const T*, kRows> column;  // past the end the last column stands in, and nobody reads its sums
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) column[a] = value.data + std::min<Index>(c + a, v_dim - 1);
      T* out = m.out + c * kQueries;
      Array<Array<Vec, kVectors>, kRows> sum;
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::load(sum[a][v], out + a * kQueries + v * kLanes);
      }
      if (rescale) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          Vec factor;
          S::load(factor, m.rescale + v * kLanes);
          ATTN_UNROLL for (int a = 0; a < kRows; ++a) sum[a][v] *= factor;
        }
      }
      for (Index j = 0; j < keys; ++j) {
        Array<Vec, kVectors> w;
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::load(w[v], m.scores + j * kQueries + v * kLanes);
        ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
          const T x = column[a][j * value.stride];
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::add_product(sum[a][v], w[v], x);
        }
      }
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::store(out + a * kQueries + v * kLanes, sum[a][v]);
      }
    }
  }
};

}  // namespace attn::detail
