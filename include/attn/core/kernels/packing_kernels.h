// Kernels that copy data into and out of tiles of any width: they pack rows, load queries and store outputs.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/core/base/ranges.h"
#include "attn/core/kernels/tile_memory.h"
#include "attn/core/simd/half_vec.h"
#include "attn/core/tensor/dtype_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// For column-major rows: element c of all rows is contiguous, followed by element c + 1. Column-major queries already
/// have the order of a tile, and so does their output. Keys and values are transposed. Nothing outside the rows is read
/// or written: at the end, vectors overlap or are narrower.
template <class T, int Bytes>
struct ColumnKernels {
  using V = Vec<T, Bytes>;
  using Halves = ColumnKernels<T, Bytes / 2>;
  using Least = ColumnKernels<T, 16>;
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
  static ATTN_INLINE void store_columns(const TileState<T>& m, Index queries, T* to, Index column, Index rows,
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
    Index r = 0;
    for (; r + kLanes <= rows; r += kLanes) pack_vectors(from + r, column, columns, to + r * columns);
    // The last rows in the narrowest vectors. Halves first would need another transpose, for a few rows of a tile.
    if constexpr (kHasHalves)
      for (; r + Least::kLanes <= rows; r += Least::kLanes)
        Least::pack_vectors(from + r, column, columns, to + r * columns);
    return r;
  }

  /// pack_columns() for kLanes rows.
  static ATTN_INLINE void pack_vectors(const T* from, Index column, Index columns, T* to) {
    Index c = 0;
    for (; c + kLanes <= columns; c += kLanes) transpose(from + c * column, column, to + c, columns);
    if constexpr (kHasHalves)
      for (; c + Least::kLanes <= columns; c += Least::kLanes)
        for (Index i = 0; i < kLanes; i += Least::kLanes)
          Least::transpose(from + i + c * column, column, to + i * columns + c, columns);
    for (; c < columns; ++c)
      for (Index i = 0; i < kLanes; ++i) to[i * columns + c] = from[i + c * column];
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
  static ATTN_INLINE void store_vectors(const TileState<T>& m, Index queries, T* to, Index column, Index q,
                                        Index v_dim) {
    const V sum = V::load(m.sum + q), inverse = select(sum == V{}, V{}, T(1) / sum);
    for (Index c = 0; c < v_dim; ++c) (V::load(m.out + c * queries + q) * inverse).store(to + q + c * column);
  }
};

/// The width of a tile is an argument here, so that these kernels are compiled once for each instruction set. kOthers:
/// rows may hold types other than T.
template <class T, int Bytes, bool kOthers = std::is_same_v<T, float>, DType kCached = DType::native>
struct PackingKernels {
  using V = Vec<T, Bytes>;
  using Columns = ColumnKernels<T, Bytes>;
  static constexpr Index kLanes = V::kLanes;

  /// to (dim, queries) = factor * rows, transposed. Queries beyond the last row repeat it. A factor of 1 preserves all
  /// bits, because an element may hold two 16-bit floats.
  static ATTN_INLINE void load_columns(T* to, Index queries, Rows<T> from, Index rows, Index dim, T factor) {
    const auto row = [&](Index i) { return from.data + std::min(i, rows - 1) * from.stride; };
    const Index whole = queries / kLanes * kLanes, whole_dim = dim / kLanes * kLanes;
    for (Index q = 0; q < whole; q += kLanes) {
      // A single row, such as the last of 17 queries, and the columns that repeat it need no transpose.
      if (kLanes > 1 && q + 1 >= rows) {
        for (Index d = 0; d < whole_dim; ++d) {
          V x = V::broadcast(row(q)[d]);
          if (factor != T(1)) x *= factor;
          x.store(to + d * queries + q);
        }
        continue;
      }
      for (Index d = 0; d < whole_dim; d += kLanes) {
        Array<V, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) square[i] = V::load(row(q + i) + d);
        if (factor != T(1)) {
          ATTN_UNROLL for (int i = 0; i < kLanes; ++i) square[i] *= factor;
        }
        V::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) square[i].store(to + (d + i) * queries + q);
      }
    }
    for (Index q = whole_dim < dim ? 0 : whole; q < queries; ++q)
      for (Index d = q < whole ? whole_dim : 0; d < dim; ++d)
        to[d * queries + q] = factor == T(1) ? row(q)[d] : row(q)[d] * factor;
  }

  /// Stores rows = out / sum, transposed back, or 0 if no key was kept.
  static ATTN_INLINE void store_out(const TileState<T>& m, Index queries, T* to, Index stride, Index rows,
                                    Index v_dim) {
    const Index whole_dim = v_dim / kLanes * kLanes,
                whole = rows % kLanes == 1 ? rows - 1 : std::min(queries / kLanes * kLanes, padded(rows, kLanes));
    for (Index q = 0; q < whole; q += kLanes) {
      const V sum = V::load(m.sum + q), inverse = select(sum == V{}, V{}, T(1) / sum);
      for (Index c = 0; c < whole_dim; c += kLanes) {
        Array<V, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) { square[i] = V::load(m.out + (c + i) * queries + q) * inverse; }
        V::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
          if (q + i < rows) square[i].store(to + (q + i) * stride + c);
        }
      }
    }
    for (Index q = whole_dim < v_dim ? 0 : whole; q < rows; ++q) {
      const T inverse = m.sum[q] == T(0) ? T(0) : T(1) / m.sum[q];
      for (Index c = q < whole ? whole_dim : 0; c < v_dim; ++c) to[q * stride + c] = m.out[c * queries + q] * inverse;
    }
  }

  /// Packs rows of any strides and element type back to back. Contiguous columns, as in a column-major matrix, are
  /// transposed in registers.
  static ATTN_INLINE void pack_rows(const RowsToRead& from, Index rows, Index columns, T* to) {
    if (from.dtype == DType::native && from.stride == 1 && from.column != 1) {
      const T* const numbers = reinterpret_cast<const T*>(from.data);
      Index r = V::kIsVector ? Columns::pack_columns(numbers, from.column, rows, columns, to) : 0;
      for (; r < rows; ++r)
        for (Index c = 0; c < columns; ++c) to[r * columns + c] = numbers[r + c * from.column];
      return;
    }
    const Index whole_columns = columns / kLanes * kLanes;
    const Index whole_rows = from.column == 1 ? rows : from.stride == 1 ? rows / kLanes * kLanes : 0;
    if (from.column == 1) {
      for (Index r = 0; r < rows; ++r) {
        const std::byte* const row = from.data + offset_of_element<T>(from.dtype, r * from.stride);
        T* const packed = to + r * columns;
        for (Index c = 0; c < whole_columns; c += kLanes) load(from.dtype, row, c).store(packed + c);
      }
    } else if constexpr (kOthers) {  // rows of T were packed above
      for (Index r = 0; r < whole_rows; r += kLanes) {
        for (Index c = 0; c < whole_columns; c += kLanes) {
          Array<V, kLanes> square;
          for (Index i = 0; i < kLanes; ++i) square[i] = load(from.dtype, from.data, r + (c + i) * from.column);
          V::transpose(square);
          ATTN_UNROLL for (int i = 0; i < kLanes; ++i) square[i].store(to + (r + i) * columns + c);
        }
      }
    }
    for (Index r = 0; r < rows; ++r)
      for (Index c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
        to[r * columns + c] = load_number<T>(from, r, c);
  }

  /// The reverse of pack_rows(): copies contiguous rows to rows of any strides and element type.
  static ATTN_INLINE void unpack_rows(const T* from, Index rows, Index columns, const RowsToWrite& to) {
    const Index whole_columns = to.column == 1 ? columns / kLanes * kLanes : 0;
    const Index size = size_of_element<T>(to.dtype);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < whole_columns; c += kLanes) {
        store(to.dtype, to.data + (r * to.stride + c) * size, V::load(from + r * columns + c));
      }
      for (Index c = whole_columns; c < columns; ++c) store_number(to, r, c, from[r * columns + c]);
    }
  }

  /// to = from * factor; both may be the same array.
  static ATTN_INLINE void multiply(T* to, const T* from, Index count, T factor) {
    if (to == from && factor == T(1)) return;
    Index i = 0;
    for (; i + kLanes <= count; i += kLanes) (V::load(from + i) * factor).store(to + i);
    for (; i < count; ++i) to[i] = from[i] * factor;
  }

  /// Loads a vector of contiguous elements of a row, from element `first` on, a multiple of kLanes.
  template <DType kDType>
  static ATTN_INLINE V load(const std::byte* row, Index first) {
    const std::byte* const from = row + offset_of_element<T>(kDType, first);
    if constexpr (kDType == DType::native)
      return V::load(reinterpret_cast<const T*>(from));
    else if constexpr (kDType == DType::f16)
      return HalfVec<Bytes>::widen_f16(from);
    else if constexpr (kDType == DType::bf16)
      return HalfVec<Bytes>::widen_bf16(from);
    else if constexpr (kDType == DType::i8)
      return HalfVec<Bytes>::widen_i8(from);
    else if constexpr (kDType == DType::f8_e4m3 || kDType == DType::f8_e5m2)
      return SmallVec<Bytes>::template widen_f8<kDType>(from);
    else {
      V x;
      SmallVec<Bytes>::template widen_i4<kDType, 1>(&x, from, first % Int4::kNumbers);
      return x;
    }
  }
  /// load() for n vectors, which must be in one block if elements have blocks.
  template <DType kDType, int n>
  static ATTN_INLINE void load_some(V* x, const std::byte* row, Index first) {
    if constexpr (elements_of_block(kDType) > 1)
      SmallVec<Bytes>::template widen_i4<kDType, n>(x, row + offset_of_element<T>(kDType, first),
                                                    first % elements_of_block(kDType));
    else
      ATTN_UNROLL for (int i = 0; i < n; ++i) x[i] = load<kDType>(row, first + i * kLanes);
  }
  static ATTN_INLINE V load(DType dtype, const std::byte* row, Index first) {
    if constexpr (kCached != DType::native)
      if (dtype == kCached) return load<kCached>(row, first);
    if constexpr (kOthers) {
      if (dtype == DType::f16) return load<DType::f16>(row, first);
      if (dtype == DType::bf16) return load<DType::bf16>(row, first);
    }
    return load<DType::native>(row, first);
  }

 private:
  static ATTN_INLINE void store(DType dtype, std::byte* to, const V& x) {
    if constexpr (!kOthers)
      return x.store(reinterpret_cast<T*>(to));
    else
      switch (dtype) {
        case DType::native:
          return x.store(reinterpret_cast<T*>(to));
        case DType::f16:
          return HalfVec<Bytes>::narrow_f16(to, x);
        case DType::bf16:
          return HalfVec<Bytes>::narrow_bf16(to, x);
        default:  // only caches write other types, row by row
          break;
      }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
