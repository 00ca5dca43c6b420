// The kernels of the backward pass that the forward pass has not, one text for all instruction sets.
//
// A tile of queries meets a tile of keys in five products. Three of them are kernels of the forward pass:
//
//     scores        (keys, queries)   = key · query           TileKernels::score
//     grad_weights  (keys, queries)   = value · grad_out      TileKernels::score
//     grad_query    (head_dim, queries) += keyᵀ · grad_scores  TileKernels::value
//     grad_value    (keys, v_dim)     += weights · grad_out    add_rows, here
//     grad_key      (keys, head_dim)  += grad_scores · query   add_rows, here
//
// In the last two lanes run over features and the weights are broadcast, four keys at a time: they need queries and grad_out
// as rows, the first two as columns, so that both are kept.
#pragma once

#include "attn/detail/kernels/kernel_table.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A tile of queries and a tile of keys in the backward pass.
template <class T>
struct BackwardTile {
  T* scores;        ///< (keys, queries), become the weights
  T* grad_scores;   ///< (keys, queries): first the gradients of the weights
  const T* slopes;  ///< (keys, queries), of the score mods; null: there are none
  const T* lse;     ///< of each query
  const T* delta;   ///< of each query: the sum of grad_out * out, less the gradient of lse (Dao et al. 2022, appendix B.2)
};

template <class T, int Bytes, int kRegisters>
struct BackwardKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  /// Keys and vectors of features of which add_rows forms the sums in registers: 16 and 8 of them, beside four vectors or
  /// two that are loaded in each step.
  static constexpr int kKeys = 4;
  static constexpr int kMaxColumns = kRegisters >= 32 ? 4 : 2;

  /// Scores become weights, and gradients of weights those of scores: for the softmax P of scores X,
  /// dX = P * (dP - delta) (Dao et al. 2022, appendix B.2), times the slope of the score mods. A dropped pair has none, whatever
  /// its value is.
  static ATTN_INLINE void softmax(const BackwardTile<T>& t, Index queries, Index keys) {
    Vec dropped;
    S::splat(dropped, -std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      Vec lse, delta;
      S::load(lse, t.lse + i);
      S::load(delta, t.delta + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        Vec score, weight, grad, slope;
        S::load(score, t.scores + at);
        S::load(grad, t.grad_scores + at);
        weight = score - lse;
        S::exp(weight);
        grad = weight * (grad - delta);
        if (t.slopes != nullptr) {
          S::load(slope, t.slopes + at);
          grad *= slope;
        }
        grad = score == dropped ? Vec{} : grad;
        S::store(t.scores + at, weight);
        S::store(t.grad_scores + at, grad);
      }
    }
  }

  /// to[i] = a.row(i) · b.row(i) for rows of `columns` numbers, a multiple of the lanes.
  static ATTN_INLINE void dot_rows(Rows<T> a, Rows<T> b, Index rows, Index columns, T* to) {
    for (Index i = 0; i < rows; ++i) {
      Vec sum = {}, x, y;
      for (Index c = 0; c < columns; c += kLanes) {
        S::load(x, a.data + i * a.stride + c);
        S::load(y, b.data + i * b.stride + c);
        sum += x * y;
      }
      to[i] = S::total(sum);
    }
  }

  /// to (keys, columns) += weights (keys, queries) * rows (queries, columns); `columns` is a multiple of the lanes.
  static ATTN_INLINE void add_rows(const T* weights, Index stride, Index keys, Rows<T> rows, Index queries,
                                   Index columns, T* to) {
    Index c = 0;
    for (; c + kMaxColumns * kLanes <= columns; c += kMaxColumns * kLanes)
      add_columns<kMaxColumns>(weights, stride, keys, {rows.data + c, rows.stride}, queries, columns, to + c);
    if constexpr (kMaxColumns == 4) {
      if (c + 2 * kLanes <= columns) {
        add_columns<2>(weights, stride, keys, {rows.data + c, rows.stride}, queries, columns, to + c);
        c += 2 * kLanes;
      }
    }
    if (c < columns) add_columns<1>(weights, stride, keys, {rows.data + c, rows.stride}, queries, columns, to + c);
  }

 private:
  template <int kColumns>
  static ATTN_INLINE void add_columns(const T* weights, Index stride, Index keys, Rows<T> rows, Index queries,
                                      Index to_stride, T* to) {
    for (Index j = 0; j < keys; j += kKeys) {
      // Past the end the last key stands in, and its sums are not stored.
      Array<const T*, kKeys> weight;
      weight[0] = weights + j * stride;
      ATTN_UNROLL for (int a = 1; a < kKeys; ++a) weight[a] = weight[a - 1] + (j + a < keys ? stride : 0);
      Array<Array<Vec, kColumns>, kKeys> sum = {};
      const T* row = rows.data;
      for (Index i = 0; i < queries; ++i, row += rows.stride) {
        Array<Vec, kColumns> x;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) S::load(x[v], row + v * kLanes);
        ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
          const T w = weight[a][i];
          ATTN_UNROLL for (int v = 0; v < kColumns; ++v) S::add_product(sum[a][v], x[v], w);
          if (a + 1 < kKeys) S::form_before(sum[a][0], weight[a + 1]);
        }
      }
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
        if (j + a >= keys) break;
        T* const at = to + (j + a) * to_stride;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
          Vec before;
          S::load(before, at + v * kLanes);
          before += sum[a][v];
          S::store(at + v * kLanes, before);
        }
      }
    }
  }
};

/// The kernels of one instruction set as pointers; see KernelSet.
template <class T>
struct BackwardKernelSet {
  Index lanes;  ///< rows are padded with zeros to a multiple of it
  void (*softmax)(const BackwardTile<T>&, Index queries, Index keys);
  void (*dot_rows)(Rows<T> a, Rows<T> b, Index rows, Index columns, T* to);
  void (*add_rows)(const T* weights, Index stride, Index keys, Rows<T> rows, Index queries, Index columns, T* to);
};

#define ATTN_BACKWARD_KERNELS(Name, target)                                                                     \
  template <class T, class Kernels>                                                                             \
  struct Name {                                                                                                 \
    target static void softmax(const BackwardTile<T>& t, Index queries, Index keys) {                           \
      Kernels::softmax(t, queries, keys);                                                                       \
    }                                                                                                           \
    target static void dot_rows(Rows<T> a, Rows<T> b, Index rows, Index columns, T* to) {                       \
      Kernels::dot_rows(a, b, rows, columns, to);                                                               \
    }                                                                                                           \
    target static void add_rows(const T* weights, Index stride, Index keys, Rows<T> rows, Index queries,        \
                                Index columns, T* to) {                                                         \
      Kernels::add_rows(weights, stride, keys, rows, queries, columns, to);                                     \
    }                                                                                                           \
    static constexpr BackwardKernelSet<T> set() { return {Kernels::kLanes, softmax, dot_rows, add_rows}; }      \
  }
ATTN_BACKWARD_KERNELS(GenericBackward, );
#if ATTN_X86
ATTN_BACKWARD_KERNELS(Avx2Backward, ATTN_TARGET_AVX2);
ATTN_BACKWARD_KERNELS(Avx512Backward, ATTN_TARGET_AVX512);
#endif
#undef ATTN_BACKWARD_KERNELS

/// The kernels of `isa`, which must be available; see kernel_family().
template <class T>
BackwardKernelSet<T> backward_kernels(Isa isa) {
#if ATTN_X86
  if constexpr (Simd<T, 16>::kVector) {
    if constexpr (kPromisedIsa == Isa::avx512) return Avx512Backward<T, BackwardKernels<T, 64, 32>>::set();
    if (isa >= Isa::avx512) return Avx512Backward<T, BackwardKernels<T, 64, 32>>::set();
    if constexpr (kPromisedIsa == Isa::avx2) return Avx2Backward<T, BackwardKernels<T, 32, 16>>::set();
    if (isa == Isa::avx2) return Avx2Backward<T, BackwardKernels<T, 32, 16>>::set();
  }
#endif
  (void)isa;
  return GenericBackward<T, BackwardKernels<T, 16, kGenericRegisters>>::set();
}

/// The same products next to numbers that are not finite: a dropped pair is not even multiplied, because 0 * NaN is NaN.
/// to (keys, columns) += weights * rows over the pairs that are kept.
template <class T>
void add_rows_by_selection(const T* weights, const bool* dropped, Index stride, Index keys, Rows<T> rows, Index queries,
                           Index columns, T* to) {
  for (Index j = 0; j < keys; ++j)
    for (Index i = 0; i < queries; ++i)
      for (Index c = 0; !dropped[j * stride + i] && c < columns; ++c)
        to[j * columns + c] += weights[j * stride + i] * rows.data[i * rows.stride + c];
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
