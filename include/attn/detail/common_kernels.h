// Layer 2: kernels that tiles of any width share: queries in, output out, packing, and the work around mods and values
// that are not finite.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/detail/kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The width is a number here, so that this is compiled once for each instruction set.
template <class T, int Bytes>
struct CommonKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr Index kLanes = S::kLanes;

  /// to = factor * rows, transposed into columns `queries` wide. Queries beyond the last row repeat it.
  static ATTN_INLINE void load_columns(T* to, Index queries, Rows<T> from, Index rows, Index dim, T factor) {
    const auto row = [&](Index i) { return from.data + std::min(i, rows - 1) * from.stride; };
    const Index whole = queries / kLanes * kLanes, whole_dim = dim / kLanes * kLanes;
    for (Index q = 0; q < whole; q += kLanes) {
      for (Index d = 0; d < whole_dim; d += kLanes) {
        Array<Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          S::load(square[i], row(q + i) + d);
          square[i] *= factor;
        }
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::store(to + (d + i) * queries + q, square[i]);
      }
    }
    for (Index q = whole_dim < dim ? 0 : whole; q < queries; ++q)
      for (Index d = q < whole ? whole_dim : 0; d < dim; ++d) to[d * queries + q] = row(q)[d] * factor;
  }

  /// rows = out / sum, transposed back; 0 where nothing was kept.
  static ATTN_INLINE void store_out(const TileMemory<T>& m, Index queries, T* to, Index stride, Index rows,
                                    Index v_dim) {
    const Index whole = queries / kLanes * kLanes, whole_dim = v_dim / kLanes * kLanes;
    for (Index q = 0; q < whole; q += kLanes) {
      Vec sum, inverse;
      S::load(sum, m.sum + q);
      inverse = T(1) / sum;
      inverse = sum == Vec{} ? Vec{} : inverse;
      for (Index c = 0; c < whole_dim; c += kLanes) {
        Array<Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          S::load(square[i], m.out + (c + i) * queries + q);
          square[i] *= inverse;
        }
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          if (q + i < rows) S::store(to + (q + i) * stride + c, square[i]);
        }
      }
    }
    for (Index q = whole_dim < v_dim ? 0 : whole; q < rows; ++q) {
      const T inverse = m.sum[q] == T(0) ? T(0) : T(1) / m.sum[q];
      for (Index c = q < whole ? whole_dim : 0; c < v_dim; ++c) to[q * stride + c] = m.out[c * queries + q] * inverse;
    }
  }

  /// Copies rows of any strides behind each other, as the other kernels read them. Columns that lie next to each
  /// other, as in a column-major matrix, are transposed in registers.
  static ATTN_INLINE void pack_rows(const T* from, Index row_stride, Index column_stride, Index rows, Index columns,
                                    T* to) {
    const Index whole_rows = row_stride == 1 ? rows / kLanes * kLanes : 0;
    const Index whole_columns = columns / kLanes * kLanes;
    for (Index r = 0; r < whole_rows; r += kLanes) {
      for (Index c = 0; c < whole_columns; c += kLanes) {
        Array<Vec, kLanes> square;
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
    for (; i + kLanes <= queries; i += kLanes) {
      Vec max, x;
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
    Vec sum = {}, x;
    T rest = 0;
    for (Index j = 0; j < keys; ++j) {
      const T* row = value.data + j * value.stride;
      Index c = 0;
      for (; c + kLanes <= v_dim; c += kLanes) {
        S::load(x, row + c);
        sum += x - x;
      }
      for (; c < v_dim; ++c) rest += row[c] - row[c];
    }
    Array<T, kLanes> lanes;
    S::store(lanes, sum);
    for (const T lane : lanes) rest += lane;
    return rest == T(0);
  }

  /// Which pairs of the tile are dropped; to be asked before softmax() overwrites the scores.
  static ATTN_INLINE void find_dropped(const TileMemory<T>& m, Index queries, Index keys) {
    for (Index i = 0; i < keys * queries; ++i) m.dropped[i] = m.scores[i] == -std::numeric_limits<T>::infinity();
  }

  /// As value(), but a dropped pair is not even multiplied: 0 * NaN is NaN. Slow, and only needed where a value is not
  /// finite.
  static ATTN_INLINE void value_by_selection(const TileMemory<T>& m, Index queries, Rows<T> value, Index keys,
                                             Index v_dim, Carry carry) {
    for (Index c = 0; c < v_dim; ++c) {
      T* out = m.out + c * queries;
      for (Index i = 0; i < queries; ++i)
        out[i] = carry == Carry::zero ? T(0) : carry == Carry::keep ? out[i] : out[i] * m.rescale[i];
      for (Index j = 0; j < keys; ++j) {
        const T x = value.data[j * value.stride + c];
        for (Index i = 0; i < queries; ++i)
          if (!m.dropped[j * queries + i]) out[i] += m.scores[j * queries + i] * x;
      }
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
