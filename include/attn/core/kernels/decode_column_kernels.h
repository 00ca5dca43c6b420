// Kernels for single queries over column-major keys and values.
#pragma once

#include <algorithm>

#include "attn/core/kernels/tile_memory.h"
#include "attn/core/tensor/dtype_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Number of keys that fill a vector of any instruction set. Fewer keys are copied row by row.
constexpr Index kFewestKeys = 16;

/// DecodeKernels for column-major rows. Lanes run along keys in both products: scores are accumulated column by column,
/// and outputs are dot products of the weights and a column of values. No rows are copied. TileMemory is laid out as
/// for DecodeKernels. There must be at least kFewestKeys keys.
template <class T, int Bytes, int kRegisters>
struct DecodeColumnKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;
  static_assert(kLanes <= kFewestKeys, "the last vector overlaps earlier keys, so kFewestKeys must fill one");
  static constexpr int kWidth = kRegisters >= 32 ? 4 : 2;  // vectors of keys at a time: 4 x 4 sums in 32 registers

  /// scores = query * keys.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim) {
    const T* const numbers = reinterpret_cast<const T*>(key.data);
    Index r = 0;
    if constexpr (kTogether > 1)
      for (; rows - r > 1; r = std::min<Index>(r + kTogether, rows))
        score_rows<kTogether>(m, r, std::min<Index>(kTogether, rows - r), numbers, key.column, keys, head_dim);
    for (; r < rows; ++r) score_rows<1>(m, r, 1, numbers, key.column, keys, head_dim);
  }

  /// out = rescale * out + weights * values.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim) {
    const T* const numbers = reinterpret_cast<const T*>(value.data);
    Index r = 0;
    if constexpr (kTogether > 1)
      for (; rows - r > 1; r = std::min<Index>(r + kTogether, rows))
        for (Index c = 0; c < v_dim; c += kLanes / kTogether)
          add_columns<kTogether>(m, r, std::min<Index>(kTogether, rows - r), numbers, value.column, keys, c, v_dim);
    for (; r < rows; ++r)
      for (Index c = 0; c < v_dim; c += kLanes) add_columns<1>(m, r, 1, numbers, value.column, keys, c, v_dim);
  }

 private:
  static constexpr int kTogether = kLanes >= 4 ? 4 : 1;  // rows at a time, if there are several

  /// Computes the scores of `count` rows from `first` on. If the keys do not fill the last vector, it overlaps the one
  /// before.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index first, Index count, const T* key, Index column,
                                     Index keys, Index head_dim) {
    Index j = 0;
    for (; j + kWidth * kLanes <= keys; j += kWidth * kLanes)
      score_keys<kRows, kWidth>(m, first, count, key, column, j, head_dim);
    for (; j < keys; j += kLanes)
      score_keys<kRows, 1>(m, first, count, key, column, std::min(j, keys - kLanes), head_dim);
  }

  /// Computes the scores of kVectors vectors of keys from `j` on.
  template <int kRows, int kVectors>
  static ATTN_INLINE void score_keys(const TileMemory<T>& m, Index first, Index count, const T* key, Index column,
                                     Index j, Index head_dim) {
    Array<Array<V, kVectors>, kRows> sum = {};
    Array<const T*, kRows> query;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    key += j;
    for (Index d = 0; d < head_dim; ++d, key += column) {
      Array<V, kVectors> k;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) k[v] = V::load(key + v * kLanes);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        const T q = query[r][d];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] += k[v] * q;
      }
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      T* const scores = m.scores + (first + r) * m.row + j;
      if (r >= count) break;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v].store(scores + v * kLanes);
    }
  }

  /// Computes kLanes / kRows columns of each row from `c` on. Past the end, the last column is repeated.
  template <int kRows>
  static ATTN_INLINE void add_columns(const TileMemory<T>& m, Index first, Index count, const T* value, Index column,
                                      Index keys, Index c, Index v_dim) {
    constexpr int kColumns = kLanes / kRows;
    const int here = static_cast<int>(std::min<Index>(kColumns, v_dim - c));
    Array<const T*, kColumns> of_column;
    of_column[0] = value + c * column;
    ATTN_UNROLL for (int i = 1; i < kColumns; ++i) of_column[i] = of_column[i - 1] + (i < here ? column : 0);
    Array<const T*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    }
    Array<V, kLanes> sum = {};  // row r and column i at r * kColumns + i
    Index j = 0;
    for (; j + kLanes <= keys; j += kLanes) {
      Array<V, kRows> w;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) w[r] = V::load(weights[r] + j);
      ATTN_UNROLL for (int i = 0; i < kColumns; ++i) {
        const V x = V::load(of_column[i] + j);
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) sum[r * kColumns + i] += w[r] * x;
      }
    }
    if (j < keys) {
      // The last keys do not fill a vector. The memory after them may not be readable, so the vector begins earlier,
      // and values that were already added are replaced by 0.
      Array<T, kLanes> numbers;
      ATTN_UNROLL for (int i = 0; i < kLanes; ++i) numbers[i] = i < kLanes - (keys - j) ? T(0) : T(1);
      Array<V, kRows> w;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) w[r] = V::load(weights[r] + keys - kLanes);
      const V is_new = V::load(numbers);
      ATTN_UNROLL for (int i = 0; i < kColumns; ++i) {
        const V x = select(is_new == V{}, V{}, V::load(of_column[i] + keys - kLanes));
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) sum[r * kColumns + i] += w[r] * x;
      }
    }
    Array<T, kLanes> total;
    V::sum_lanes(sum).store(total);
    for (int r = 0; r < kRows && r < count; ++r) {
      T* const out = m.out + (first + r) * v_dim + c;
      for (int i = 0; i < here; ++i)
        out[i] = V::multiply_add_one(out[i], m.rescale[first + r], total[r * kColumns + i]);
    }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
