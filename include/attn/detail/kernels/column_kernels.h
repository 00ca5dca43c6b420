// Kernels for column-major rows: element c of all rows is contiguous, followed by element c + 1.
#pragma once

#include <algorithm>

#include "attn/detail/base/ranges.h"
#include "attn/detail/kernels/tile_memory.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Column-major queries already have the order of a tile, and so does their output. Keys and values are transposed.
/// Nothing outside the rows is read or written: at the end, vectors overlap or are half as long.
template <class T, int Bytes>
struct ColumnKernels {
  using V = Vec<T, Bytes>;
  using Halves = ColumnKernels<T, Bytes / 2>;
  static constexpr Index kLanes = V::kLanes;
  static constexpr bool kHasHalves = V::kIsVector && Bytes > 16;

  /// to (dim, queries) = factor * rows, whose columns are `column` apart. Queries beyond the last row repeat it. A
  /// factor of 1 preserves all bits.
  static ATTN_INLINE void copy_columns(T* to, Index queries, const T* from, Index column, Index rows, Index dim,
                                       T factor) {
    for (Index q = 0; q < queries; q += kLanes) {
      const Index left = rows - q;
      if (left >= kLanes) {
        for (Index d = 0; d < dim; ++d) copy_vector(to + d * queries + q, from + d * column + q, factor);
        continue;
      }
      for (Index d = 0; d < dim; ++d) {
        V last = V::broadcast(from[d * column + rows - 1]);
        if (factor != T(1)) last *= factor;
        last.store(to + d * queries + q);
      }
      if (left > 0) copy_few(to + q, queries, from + q, column, left, dim, factor);
    }
  }

  /// Stores rows = out / sum, or 0 if no key was kept.
  static ATTN_INLINE void store_columns(const TileMemory<T>& m, Index queries, T* to, Index column, Index rows,
                                        Index v_dim) {
    if (rows >= kLanes) {
      for (Index q = 0; q < rows; q += kLanes) store_vectors(m, queries, to, column, std::min(q, rows - kLanes), v_dim);
    } else if constexpr (kHasHalves) {
      Halves::store_columns(m, queries, to, column, rows, v_dim);
    } else {
      for (Index q = 0; q < rows; ++q) {
        const T inverse = m.sum[q] == T(0) ? T(0) : T(1) / m.sum[q];
        for (Index c = 0; c < v_dim; ++c) to[q + c * column] = m.out[c * queries + q] * inverse;
      }
    }
  }

  /// Packs column-major rows back to back. @returns the number of packed rows; fewer than four remain.
  static ATTN_INLINE Index pack_columns(const T* from, Index column, Index rows, Index columns, T* to) {
    using Least = ColumnKernels<T, 16>;
    Index r = 0;
    for (; r + kLanes <= rows; r += kLanes) {
      Index c = 0;
      for (; c + kLanes <= columns; c += kLanes)
        transpose(from + r + c * column, column, to + r * columns + c, columns);
      for (; c + Least::kLanes <= columns; c += Least::kLanes)
        for (Index i = 0; i < kLanes; i += Least::kLanes)
          Least::transpose(from + r + i + c * column, column, to + (r + i) * columns + c, columns);
      for (; c < columns; ++c)
        for (Index i = r; i < r + kLanes; ++i) to[i * columns + c] = from[i + c * column];
    }
    if constexpr (kHasHalves) r += Halves::pack_columns(from + r, column, rows - r, columns, to + r * columns);
    return r;
  }

  /// Transposes a square of kLanes rows.
  static ATTN_INLINE void transpose(const T* from, Index column, T* to, Index row) {
    Array<V, kLanes> square;
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i, from += column) square[i] = V::load(from);
    V::transpose(square);
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i, to += row) square[i].store(to);
  }

  /// copy_columns() for fewer rows than a vector has lanes.
  static ATTN_INLINE void copy_few(T* to, Index queries, const T* from, Index column, Index rows, Index dim, T factor) {
    if constexpr (kHasHalves) {
      if (rows < Halves::kLanes) return Halves::copy_few(to, queries, from, column, rows, dim, factor);
      const Index second = rows - Halves::kLanes;
      for (Index d = 0; d < dim; ++d) {
        Halves::copy_vector(to + d * queries, from + d * column, factor);
        Halves::copy_vector(to + d * queries + second, from + d * column + second, factor);
      }
    } else {
      for (Index d = 0; d < dim; ++d)
        for (Index i = 0; i < rows; ++i) to[d * queries + i] = from[d * column + i] * factor;
    }
  }

  static ATTN_INLINE void copy_vector(T* to, const T* from, T factor) {
    V x = V::load(from);
    if (factor != T(1)) x *= factor;
    x.store(to);
  }

 private:
  /// Stores the output of kLanes queries from `q` on.
  static ATTN_INLINE void store_vectors(const TileMemory<T>& m, Index queries, T* to, Index column, Index q,
                                        Index v_dim) {
    const V sum = V::load(m.sum + q), inverse = select(sum == V{}, V{}, T(1) / sum);
    for (Index c = 0; c < v_dim; ++c) (V::load(m.out + c * queries + q) * inverse).store(to + q + c * column);
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
