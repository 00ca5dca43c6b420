// Kernels that bring numbers into a tile and out of it: they pack rows, load queries and store outputs. Tiles of any
// width share them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/detail/kernels/column_kernels.h"
#include "attn/detail/simd/half_simd.h"
#include "attn/detail/tensor/dtype_view.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The width is a number here, so that this is compiled once for each instruction set. kOthers: rows may hold other
/// numbers than T.
template <class T, int Bytes, bool kOthers = std::is_same_v<T, float>>
struct PackingKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  using Columns = ColumnKernels<T, Bytes>;
  static constexpr Index kLanes = S::kLanes;

  /// load_columns() for rows that lie side by side.
  static ATTN_INLINE void copy_columns(T* to, Index queries, const T* from, Index column, Index rows, Index dim,
                                       T factor) {
    Columns::copy_columns(to, queries, from, column, rows, dim, factor);
  }
  static ATTN_INLINE void store_columns(const TileMemory<T>& m, Index queries, T* to, Index column, Index rows,
                                        Index v_dim) {
    Columns::store_columns(m, queries, to, column, rows, v_dim);
  }

  /// to (dim, queries) = factor * rows, transposed. Queries beyond the last row repeat it. A factor of 1 leaves all
  /// bits alone, which may be those of two numbers of 16 bits.
  static ATTN_INLINE void load_columns(T* to, Index queries, Rows<T> from, Index rows, Index dim, T factor) {
    const auto row = [&](Index i) { return from.data + std::min(i, rows - 1) * from.stride; };
    const Index whole = queries / kLanes * kLanes, whole_dim = dim / kLanes * kLanes;
    for (Index q = 0; q < whole; q += kLanes) {
      // A single row, such as the last of 17 queries, and the columns that repeat it are no square to be transposed.
      if (kLanes > 1 && q + 1 >= rows) {
        for (Index d = 0; d < whole_dim; ++d) {
          Vec x;
          S::splat(x, row(q)[d]);
          if (factor != T(1)) x *= factor;
          S::store(to + d * queries + q, x);
        }
        continue;
      }
      for (Index d = 0; d < whole_dim; d += kLanes) {
        Array<Vec, kLanes> square;
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::load(square[i], row(q + i) + d);
        if (factor != T(1)) {
          ATTN_UNROLL for (int i = 0; i < kLanes; ++i) square[i] *= factor;
        }
        S::transpose(square);
        ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::store(to + (d + i) * queries + q, square[i]);
      }
    }
    for (Index q = whole_dim < dim ? 0 : whole; q < queries; ++q)
      for (Index d = q < whole ? whole_dim : 0; d < dim; ++d)
        to[d * queries + q] = factor == T(1) ? row(q)[d] : row(q)[d] * factor;
  }

  /// Stores rows = out / sum, transposed back, or 0 where nothing was kept.
  static ATTN_INLINE void store_out(const TileMemory<T>& m, Index queries, T* to, Index stride, Index rows,
                                    Index v_dim) {
    const Index whole_dim = v_dim / kLanes * kLanes,
                whole = rows % kLanes == 1 ? rows - 1 : std::min(queries / kLanes * kLanes, padded(rows, kLanes));
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

  /// Copies rows of any strides and number type behind each other. Columns that lie next to each other, as in a
  /// column-major matrix, are transposed in registers.
  static ATTN_INLINE void pack_rows(const RowsToRead& from, Index rows, Index columns, T* to) {
    if (from.dtype == DType::native && from.stride == 1 && from.column != 1) {
      const T* const numbers = reinterpret_cast<const T*>(from.data);
      Index r = S::kVector ? Columns::pack_columns(numbers, from.column, rows, columns, to) : 0;
      for (; r < rows; ++r)
        for (Index c = 0; c < columns; ++c) to[r * columns + c] = numbers[r + c * from.column];
      return;
    }
    const Index size = size_of_number<T>(from.dtype);
    const Index whole_columns = columns / kLanes * kLanes;
    const Index whole_rows = from.column == 1 ? rows : from.stride == 1 ? rows / kLanes * kLanes : 0;
    if (from.column == 1) {
      for (Index r = 0; r < rows; ++r) {
        const std::byte* row = from.data + r * from.stride * size;
        T* const packed = to + r * columns;
        for (Index c = 0; c < whole_columns; c += kLanes, row += kLanes * size) {
          Vec x;
          load(x, from.dtype, row);
          S::store(packed + c, x);
        }
      }
    } else if constexpr (kOthers) {  // those of T were packed above
      for (Index r = 0; r < whole_rows; r += kLanes) {
        for (Index c = 0; c < whole_columns; c += kLanes) {
          Array<Vec, kLanes> square;
          for (Index i = 0; i < kLanes; ++i)
            load(square[i], from.dtype, from.data + (r + (c + i) * from.column) * size);
          S::transpose(square);
          ATTN_UNROLL for (int i = 0; i < kLanes; ++i) S::store(to + (r + i) * columns + c, square[i]);
        }
      }
    }
    for (Index r = 0; r < rows; ++r)
      for (Index c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
        to[r * columns + c] = load_number<T>(from, r, c);
  }

  /// The reverse of pack_rows(): rows behind each other become rows of any strides and number type.
  static ATTN_INLINE void unpack_rows(const T* from, Index rows, Index columns, const RowsToWrite& to) {
    const Index whole_columns = to.column == 1 ? columns / kLanes * kLanes : 0;
    const Index size = size_of_number<T>(to.dtype);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < whole_columns; c += kLanes) {
        Vec x;
        S::load(x, from + r * columns + c);
        store(to.dtype, to.data + (r * to.stride + c) * size, x);
      }
      for (Index c = whole_columns; c < columns; ++c) store_number(to, r, c, from[r * columns + c]);
    }
  }

  /// numbers *= factor.
  static ATTN_INLINE void multiply(T* numbers, Index count, T factor) {
    if (factor == T(1)) return;
    Index i = 0;
    for (Vec x; i + kLanes <= count; i += kLanes) {
      S::load(x, numbers + i);
      x *= factor;
      S::store(numbers + i, x);
    }
    for (; i < count; ++i) numbers[i] *= factor;
  }

  /// Loads a vector of neighbouring numbers.
  template <DType kDType>
  static ATTN_INLINE void load(Vec& x, const std::byte* from) {
    if constexpr (kDType == DType::native)
      S::load(x, reinterpret_cast<const T*>(from));
    else if constexpr (kDType == DType::f16)
      HalfSimd<Bytes>::widen_f16(x, from);
    else if constexpr (kDType == DType::bf16)
      HalfSimd<Bytes>::widen_bf16(x, from);
    else
      HalfSimd<Bytes>::widen_i8(x, from);
  }
  static ATTN_INLINE void load(Vec& x, DType dtype, const std::byte* from) {
    if constexpr (!kOthers)
      return load<DType::native>(x, from);
    else
      switch (dtype) {
        case DType::native:
          return load<DType::native>(x, from);
        case DType::f16:
          return load<DType::f16>(x, from);
        case DType::bf16:
          return load<DType::bf16>(x, from);
        case DType::i8:
          return load<DType::i8>(x, from);
      }
    __builtin_unreachable();
  }

 private:
  static ATTN_INLINE void store(DType dtype, std::byte* to, const Vec& x) {
    if constexpr (!kOthers)
      return S::store(reinterpret_cast<T*>(to), x);
    else
      switch (dtype) {
        case DType::native:
          return S::store(reinterpret_cast<T*>(to), x);
        case DType::f16:
          return HalfSimd<Bytes>::narrow_f16(to, x);
        case DType::bf16:
          return HalfSimd<Bytes>::narrow_bf16(to, x);
        case DType::i8:  // integers have scales, and KvPages writes them
          break;
      }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
