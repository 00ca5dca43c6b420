// The kernels that only the backward pass needs, one source for all instruction sets.
//
// A tile of queries and a tile of keys need five products. Three of them use kernels of the forward pass:
//
//     scores        (keys, queries)   = key · query           TileKernels::score
//     grad_weights  (keys, queries)   = value · grad_out      TileKernels::score
//     grad_query    (head_dim, queries) += keyᵀ · grad_scores  TileKernels::value
//     grad_value    (keys, v_dim)     += weights · grad_out    add_rows, here
//     grad_key      (keys, head_dim)  += grad_scores · query   add_rows, here
//
// In the last two products, lanes run over features and the weights are broadcast, four keys at a time. These two need
// queries and grad_out as rows, while the first two need them as columns, so both forms are stored.
#pragma once

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of queries and a tile of keys in the backward pass.
template <class T>
struct BackwardTile {
  T* scores;        ///< (keys, queries), overwritten with the weights
  T* grad_scores;   ///< (keys, queries): gradients of the weights, overwritten with those of the scores
  const T* slopes;  ///< (keys, queries), of the score mods; null if none
  /// Of each query: weights are e^(score - lse - lse_rest).
  const T *lse, *lse_rest;
  /// Of each query: the sum of grad_out * out, minus the gradient of lse (Dao et al. 2022, appendix B.2), is delta +
  /// delta_rest.
  const T *delta, *delta_rest;
};

/// Sums over the keys that a tile of queries has visited, relative to the maximum of each query's scores. Each sum has
/// the part of it lost to rounding beside it, so that errors do not grow with the number of keys.
template <class T>
struct RowSums {
  T *max, *delta;        ///< max: of the scores; delta: close to that of BackwardTile, and constant
  T *sum, *sum_rest;     ///< of e^(score - max)
  T *grads, *grad_rest;  ///< of e^(score - max) * (gradient of the weight - delta)
};

template <class T, int Bytes, int kRegisters>
struct BackwardKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// add_rows() keeps the sums of this many keys and vectors of features in registers: 16 or 8 sums, beside the four or
  /// two vectors that each step loads.
  static constexpr int kKeys = 4;
  static constexpr int kMaxColumns = kRegisters >= 32 ? 4 : 2;

  /// Turns scores into weights, and gradients of weights into gradients of scores: for the softmax P of scores X, dX =
  /// P * (dP - delta) (Dao et al. 2022, appendix B.2), times the slope of the score mods. The gradient of a dropped
  /// pair is 0, even if its value is not finite.
  static ATTN_INLINE void softmax(const BackwardTile<T>& t, Index queries, Index keys) {
    const V dropped = V::broadcast(-std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      const V lse = V::load(t.lse + i), lse_rest = V::load(t.lse_rest + i), delta = V::load(t.delta + i),
              delta_rest = V::load(t.delta_rest + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        const V score = V::load(t.scores + at), weight = exp(score - lse - lse_rest);
        V grad = weight * (V::load(t.grad_scores + at) - delta - delta_rest);
        if (t.slopes != nullptr) grad *= V::load(t.slopes + at);
        weight.store(t.scores + at);
        select(score == dropped, V{}, grad).store(t.grad_scores + at);
      }
    }
  }

  /// Adds the keys of a tile to the sums of its queries. Dropped pairs add nothing, even if values are not finite.
  static ATTN_INLINE void add_to_sums(const RowSums<T>& sums, const T* scores, const T* grad_scores, Index queries,
                                      Index keys) {
    const V dropped = V::broadcast(-std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      const V old = V::load(sums.max + i), delta = V::load(sums.delta + i);
      V highest = old;
      for (Index j = 0; j < keys; ++j) highest = max(V::load(scores + j * queries + i), highest);  // ignores NaN
      highest.store(sums.max + i);
      // Before its first key, a query has the maximum -inf; e^(-inf - 0) is the right weight.
      const V reference = select(highest == dropped, V{}, highest), rescale = exp(old - reference);
      for (T* numbers : {sums.sum, sums.sum_rest, sums.grads, sums.grad_rest})
        (V::load(numbers + i) * rescale).store(numbers + i);
      V sum{}, grads{};
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        const V score = V::load(scores + at), weight = exp(score - reference);
        const V grad = weight * (V::load(grad_scores + at) - delta);
        sum += weight;
        grads += select(score == dropped, V{}, grad);
      }
      add_to(sums.sum + i, sums.sum_rest + i, sum);
      add_to(sums.grads + i, sums.grad_rest + i, grads);
    }
  }

  static constexpr Index kPanel = kMaxColumns * kLanes;
  static_assert(kKeyTile % kPanel == 0, "blocks of columns begin with a panel");

  /// Packs `count` rows of `dim` elements, times a factor, as panels: the first kPanel columns of all rows back to
  /// back, then the next kPanel. The last panel is only as wide as needed, in whole vectors, and padded with zeros. A
  /// product over rows then reads memory sequentially, while rows of 512 bytes would compete for a few sets of the
  /// cache.
  static ATTN_INLINE void pack_panels(Rows<T> rows, Index count, Index dim, T factor, T* to) {
    for (Index c = 0; c < dim; c += kPanel) {
      const Index width = std::min(kPanel, dim - c), padded_width = padded(width, kLanes);
      for (Index i = 0; i < count; ++i, to += padded_width) {
        const T* const row = rows.data + i * rows.stride + c;
        Index x = 0;
        for (; x + kLanes <= width; x += kLanes) {
          (V::load(row + x) * factor).store(to + x);
        }
        for (; x < width; ++x) to[x] = row[x] * factor;
        for (; x < padded_width; ++x) to[x] = 0;
      }
    }
  }

  /// to += from, both of `count` elements, a multiple of the lanes.
  static ATTN_INLINE void add(T* to, const T* from, Index count) {
    for (Index i = 0; i < count; i += kLanes) (V::load(to + i) + V::load(from + i)).store(to + i);
  }

  /// to[i] = a.row(i) · b.row(i).
  static ATTN_INLINE void dot_rows(Rows<T> a, Rows<T> b, Index rows, Index dim, T* to) {
    for (Index i = 0; i < rows; ++i) {
      const T *const x = a.data + i * a.stride, *const y = b.data + i * b.stride;
      V sum{};
      Index c = 0;
      for (; c + kLanes <= dim; c += kLanes) sum += V::load(x + c) * V::load(y + c);
      T all = sum.total();
      for (; c < dim; ++c) all = V::multiply_add_one(x[c], y[c], all);
      to[i] = all;
    }
  }

  /// to (keys, row) += weights (keys, queries) * panels (queries, dim), over the first `count` queries. `row` is `dim`
  /// padded to whole vectors.
  static ATTN_INLINE void add_rows(const T* weights, Index stride, Index keys, const T* panels, Index count, Index row,
                                   T* to) {
    Index c = 0;
    for (; c + kPanel <= row; c += kPanel)
      add_panel<kMaxColumns>(weights, stride, keys, panels + c * count, count, row, to + c);
    switch ((row - c) / kLanes) {
      case 3:
        if constexpr (kMaxColumns > 3) add_panel<3>(weights, stride, keys, panels + c * count, count, row, to + c);
        return;
      case 2:
        if constexpr (kMaxColumns > 2) add_panel<2>(weights, stride, keys, panels + c * count, count, row, to + c);
        return;
      case 1:
        return add_panel<1>(weights, stride, keys, panels + c * count, count, row, to + c);
      default:
        return;
    }
  }

 private:
  /// sum += x, with the part lost to rounding in `rest`.
  static ATTN_INLINE void add_to(T* sum, T* rest, const V& x) {
    V all = V::load(sum), lost = V::load(rest);
    add_exactly(all, lost, x);
    all.store(sum);
    lost.store(rest);
  }

  template <int kColumns>
  static ATTN_INLINE void add_panel(const T* weights, Index stride, Index keys, const T* panel, Index count,
                                    Index to_stride, T* to) {
    for (Index j = 0; j < keys; j += kKeys) {
      // Past the end, the last key is repeated; its sums are not stored.
      Array<const T*, kKeys> weight;
      weight[0] = weights + j * stride;
      ATTN_UNROLL for (int a = 1; a < kKeys; ++a) weight[a] = weight[a - 1] + (j + a < keys ? stride : 0);
      Array<Array<V, kColumns>, kKeys> sum = {};
      const T* row = panel;
      for (Index i = 0; i < count; ++i, row += kColumns * kLanes) {
        Array<V, kColumns> x;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
          x[v] = V::load(row + v * kLanes);
          x[v].keep_in_register();
        }
        ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
          const T w = weight[a][i];
          ATTN_UNROLL for (int v = 0; v < kColumns; ++v) sum[a][v] += x[v] * w;
          if (a + 1 < kKeys) sum[a][0].form_before(weight[a + 1]);
        }
      }
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a) {
        if (j + a >= keys) break;
        T* const at = to + (j + a) * to_stride;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
          (V::load(at + v * kLanes) + sum[a][v]).store(at + v * kLanes);
        }
      }
    }
  }
};

/// The backward kernels of one set of vectors, or for bf16, as pointers; see KernelSet.
template <class T>
struct BackwardKernelSet {
  Index columns;  ///< sums of rows are padded to a multiple of this
  Index panel;    ///< maximum number of columns of a panel; see pack_panels()
  void (*softmax)(const BackwardTile<T>&, Index queries, Index keys);
  void (*add_to_sums)(const RowSums<T>&, const T* scores, const T* grad_scores, Index queries, Index keys);
  void (*pack_panels)(Rows<T>, Index count, Index dim, T factor, T* to);
  void (*dot_rows)(Rows<T> a, Rows<T> b, Index count, Index dim, T* to);
  void (*add)(T* to, const T* from, Index count);
  void (*add_rows)(const T* weights, Index stride, Index keys, const T* panels, Index count, Index row, T* to);

  // Only kernels for bf16 set these; the defaults do nothing.
  /// Returns gradients of scores in the order in which the value product reads weights, in `to` if that order differs.
  T* (*arrange_weights)(T* weights, Index queries, Index keys, T* to) = leave_weights;
  /// Restores the column order of sums (rows, row) after the last add_rows(), and multiplies them by a factor, which is
  /// 1 if factors were applied before the products.
  void (*finish_rows)(T* sums, Index rows, Index row, T factor) = leave_rows;

  /// Replaces gradients of scores (keys, queries) by what rounding them to bf16 loses. Null if nothing is rounded.
  void (*take_lost)(T* grad_scores, Index keys) = nullptr;

  static T* leave_weights(T* weights, Index, Index, T*) { return weights; }
  static void leave_rows(T*, Index, Index, T) {}
};

/// The kernels for this set of vectors, which must be available; see kernel_family().
template <class T, class = include_attn_instantiate_h_in_one_unit>
BackwardKernelSet<T> backward_kernels(VectorSet vectors) {
  return with_vectors<T>(vectors, []<VectorSet kSet>() -> BackwardKernelSet<T> {
    using Kernels = BackwardKernels<T, kVectorBytes<kSet>, kVectorRegisters<kSet>>;
    return {.columns = Kernels::kLanes,
            .panel = Kernels::kPanel,
            .softmax = compiled<kSet, Kernels::softmax>,
            .add_to_sums = compiled<kSet, Kernels::add_to_sums>,
            .pack_panels = compiled<kSet, Kernels::pack_panels>,
            .dot_rows = compiled<kSet, Kernels::dot_rows>,
            .add = compiled<kSet, Kernels::add>,
            .add_rows = compiled<kSet, Kernels::add_rows>};
  });
}
ATTN_COMPILED_ONCE(backward_kernels)

/// add_rows() for rows with elements that are not finite: skips dropped pairs instead of multiplying them by 0, because
/// 0 * NaN is NaN.
template <class T>
void add_rows_by_selection(const T* weights, const bool* dropped, Index stride, Index keys, Rows<T> rows, T factor,
                           Index count, Index dim, Index row, T* to) {
  for (Index j = 0; j < keys; ++j)
    for (Index i = 0; i < count; ++i)
      for (Index c = 0; !dropped[j * stride + i] && c < dim; ++c)
        to[j * row + c] += weights[j * stride + i] * (rows.data[i * rows.stride + c] * factor);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
