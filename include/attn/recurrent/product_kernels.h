// Products of small cached matrices, for the chunks of a recurrence. One source for all instruction sets.
//
// Lanes run over the columns of the result. A register tile is kRows rows x kVectors vectors of columns: a step loads
// kVectors vectors of the right factor and broadcasts an element of the left one to each row. 6 x 4 needs 24 sums + 4 +
// 1 of 32 registers, 6 x 2 needs 12 + 2 + 1 of 16. The left factor may have any strides, so it may be transposed; the
// right one is read along its rows.
#pragma once

#include "attn/core/kernels/tile_memory.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The steps of a product that row i includes, where rows and steps are the tokens of a chunk. Other steps are skipped
/// instead of multiplied by 0, because 0 * NaN is NaN.
enum class Steps {
  all,
  up_to_row,  ///< 0 .. i: the tokens that a token sees
  from_row,   ///< i .. steps - 1: the tokens that see a token
};

/// to = before * to + left * right, where left is (rows, steps) and right (steps, columns). `columns` is a multiple of
/// the vectors' lanes: rows of `to` and `right` are padded.
template <class T>
struct Product {
  T* to;
  Index to_stride;
  const T* left;  ///< row i, step s is left[i * left_row + s * left_step]
  Index left_row, left_step;
  const T* right;
  Index right_stride;
  Index rows, columns, steps;
  T before = 0;  ///< 0: the old `to` is not read
  Steps taken = Steps::all;
};

template <class T, int Bytes, int kRegisters>
struct ProductKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kRows = kRegisters >= 16 ? 6 : 4, kVectors = kRegisters >= 32 ? 4 : 2;
  static_assert(!V::kIsVector || kRows * kVectors + kVectors + 1 <= kRegisters,
                "one step of a product must fit in registers");

  static ATTN_INLINE void product(const Product<T>& p) {
    Index c = 0;
    for (; c + kVectors * kLanes <= p.columns; c += kVectors * kLanes) columns_from<kVectors>(p, c);
    if constexpr (kVectors > 2)
      for (; c + 2 * kLanes <= p.columns; c += 2 * kLanes) columns_from<2>(p, c);
    for (; c + kLanes <= p.columns; c += kLanes) columns_from<1>(p, c);
  }

 private:
  template <int kV>
  static ATTN_INLINE void columns_from(const Product<T>& p, Index c) {
    Index i = 0;
    for (; i + kRows <= p.rows; i += kRows) tile<kRows, kV>(p, i, c);
    if (p.rows - i >= 4) {
      tile<4, kV>(p, i, c);
      i += 4;
    }
    for (; i < p.rows; ++i) tile<1, kV>(p, i, c);
  }

  /// Computes rows i .. i + kR - 1 of kV vectors of columns from c on.
  template <int kR, int kV>
  static ATTN_INLINE void tile(const Product<T>& p, Index i, Index c) {
    Array<Array<V, kV>, kR> sum = {};
    const T* left = p.left + i * p.left_row;
    const T* right = p.right + c;
    // Either all of these rows include the steps [0, i) or none do, and the same is true of the steps from i + kR on.
    // Of the steps in between, each row includes some.
    const Index corner = p.taken == Steps::all ? 0 : std::min<Index>(kR, p.steps - i);
    Index from = p.taken == Steps::from_row ? i : 0;
    left += from * p.left_step;
    right += from * p.right_stride;
    if (p.taken == Steps::from_row) {
      ATTN_UNROLL for (int d = 0; d < kR; ++d) {
        if (d < corner) step<kR, kV>(sum, left, right, p, [d](int a) { return a <= d; });
      }
      from += corner;
    }
    const Index to = p.taken == Steps::up_to_row ? i : p.steps;
    for (Index s = from; s < to; ++s) step<kR, kV>(sum, left, right, p, [](int) { return true; });
    if (p.taken == Steps::up_to_row) {
      ATTN_UNROLL for (int d = 0; d < kR; ++d) {
        if (d < corner) step<kR, kV>(sum, left, right, p, [d](int a) { return a >= d; });
      }
    }
    T* const out = p.to + i * p.to_stride + c;
    if (p.before != T(0)) {
      ATTN_UNROLL for (int a = 0; a < kR; ++a) {
        ATTN_UNROLL for (int v = 0; v < kV; ++v) {
          sum[a][v] += V::load(out + a * p.to_stride + v * kLanes) * p.before;
        }
      }
    }
    ATTN_UNROLL for (int a = 0; a < kR; ++a) {
      ATTN_UNROLL for (int v = 0; v < kV; ++v) sum[a][v].store(out + a * p.to_stride + v * kLanes);
    }
  }

  /// Adds one step for the rows that `takes` selects.
  template <int kR, int kV, class Takes>
  static ATTN_INLINE void step(Array<Array<V, kV>, kR>& sum, const T*& left, const T*& right, const Product<T>& p,
                               const Takes& takes) {
    Array<V, kV> r;
    ATTN_UNROLL for (int v = 0; v < kV; ++v) r[v] = V::load(right + v * kLanes);
    ATTN_UNROLL for (int a = 0; a < kR; ++a) {
      if (!takes(a)) continue;
      const T x = left[a * p.left_row];
      ATTN_UNROLL for (int v = 0; v < kV; ++v) sum[a][v] += r[v] * x;
      sum[a][0].form_before(left);
    }
    left += p.left_step;
    right += p.right_stride;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
