// Kernels that accumulate the output over stretches of tiles of keys, for tiles of any width and for single queries.
#pragma once

#include <algorithm>

#include "attn/core/base/more_digits.h"
#include "attn/core/kernels/tile_memory.h"
#include "attn/core/simd/softmax_state.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The layout of `out`: (v_dim, queries) in tiles, (queries, v_dim) for single queries.
enum class OutLayout { by_column, by_query };

template <class T, int Bytes>
struct TotalKernels {
  using V = Vec<T, Bytes>;
  static constexpr Index kLanes = V::kLanes;

  /// Adds the current stretch to the totals; the first stretch becomes the totals. m.out must not be read afterwards.
  static ATTN_INLINE void end_stretch(const TileMemory<T>& m, Index queries, Index v_dim, OutLayout layout,
                                      bool is_first) {
    const Totals<T>& totals = m.totals;
    const Index size = queries * v_dim, in_vectors = size / kLanes * kLanes;
    if (is_first) {
      std::copy_n(m.out, size, totals.out);
      std::fill_n(totals.out_rest, size, T(0));
    } else {
      if (find_factors(m, queries)) rescale_totals(m, queries, v_dim, layout);
      for (Index i = 0; i < in_vectors; i += kLanes) {
        V out = V::load(totals.out + i), rest = V::load(totals.out_rest + i);
        add_exactly(out, rest, V::load(m.out + i));
        out.store(totals.out + i);
        rest.store(totals.out_rest + i);
      }
      for (Index i = in_vectors; i < size; ++i) add_exactly(totals.out[i], totals.out_rest[i], m.out[i]);
    }
    std::copy_n(m.max, queries, totals.max);
  }

  /// For Options::row_invariant: merges the current stretch, whose sums include their rests, into the totals, as
  /// merge_rows() does with results of calls. Queries for which the stretch keeps no key keep their totals, so that
  /// results do not depend on the keys that other queries see. If `adds_up`, weights are not normalised, and outputs
  /// are added.
  static ATTN_INLINE void merge_stretch(const TileState<T>& m, Index queries, Index v_dim, bool adds_up) {
    for (Index first = 0; first < queries; first += kLanes) {  // a tile has whole vectors of queries
      Array<T, kLanes> weight_before, weight;
      for (Index i = 0; i < kLanes; ++i) {
        weight_before[i] = weight[i] = T(1);
        if (!adds_up) merge_state(m, first + i, weight_before[i], weight[i]);
      }
      const V before = V::load(weight_before), now = V::load(weight);
      for (Index c = 0; c < v_dim; ++c) {
        T* const total = m.totals.out + c * queries + first;
        merged(before, V::load(total), now, V::load(m.out + c * queries + first)).store(total);
      }
    }
  }

  /// Adds to each sum its part lost to rounding. If there are totals, which must include the last stretch by now,
  /// stores them as the output.
  static ATTN_INLINE void finish(const TileState<T>& m, Index queries, Index v_dim, bool has_totals) {
    add_rests(m.sum, m.sum, m.sum_rest, queries);
    if (has_totals) add_rests(m.out, m.totals.out, m.totals.out_rest, queries * v_dim);
  }

 private:
  /// a * x + b * y. A part of weight 0 has no effect: it neither changes the sign of a zero nor, if it is infinite,
  /// makes the sum NaN.
  static ATTN_INLINE V merged(const V& a, const V& x, const V& b, const V& y) {
    const V part = b * y, both = a * x + b * y;
    return select(b == V{}, x, select(a == V{}, part, both));
  }
  /// Merges the state of a query after a stretch into its total, and sets the weights of the two outputs.
  static ATTN_INLINE void merge_state(const TileState<T>& m, Index i, T& weight_before, T& weight) {
    using State = SoftmaxState<T>;
    T& lse = m.totals.max[i];
    T& rest = m.totals.out_rest[i];
    const State before = State::of(lse, rest), now{m.max[i], m.sum[i]};
    weight = T(0);
    if (now.sum == T(0)) return;
    State all{std::max(before.max, now.max)};
    const T factor_before = before.factor_in(all), factor = now.factor_in(all);
    all.sum = V::multiply_add_one(now.sum, factor, before.sum * factor_before);
    weight = factor * (now.sum / (now.sum + m.excess[i])) / all.sum;
    weight_before = before.sum * factor_before / all.sum;
    lse = all.lse();
    rest = KeptLseRests<T>::is_small(lse) ? T(0) : all.lse_rest();  // as a call would store it
  }

  /// to = sums + rests.
  static ATTN_INLINE void add_rests(T* to, const T* sums, const T* rests, Index size) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      V sum = V::load(sums + i);
      add_rest(sum, V::load(rests + i));
      sum.store(to + i);
    }
    for (; i < size; ++i) {
      to[i] = sums[i];
      add_rest(to[i], rests[i]);
    }
  }

  /// Sets m.rescale to the factors that make the totals relative to the current maxima. Returns whether any factor is
  /// not 1.
  static ATTN_INLINE bool find_factors(const TileMemory<T>& m, Index queries) {
    bool moved = false;
    for (Index i = 0; i < queries; ++i) {
      const T before = m.totals.max[i], now = m.max[i];
      m.rescale[i] = before == now ? T(1) : SoftmaxState<T>::factor(before, now);
      moved |= before != now;
    }
    return moved;
  }

  static ATTN_INLINE void rescale_totals(const TileMemory<T>& m, Index queries, Index v_dim, OutLayout layout) {
    const bool by_query = layout == OutLayout::by_query;
    const Index rows = by_query ? queries : v_dim, columns = by_query ? v_dim : queries;
    for (T* out : {m.totals.out, m.totals.out_rest})
      for (Index r = 0; r < rows; ++r, out += columns) {
        Index c = 0;
        for (; c + kLanes <= columns; c += kLanes) {
          const V factor = by_query ? V::broadcast(m.rescale[r]) : V::load(m.rescale + c);
          (V::load(out + c) * factor).store(out + c);
        }
        for (; c < columns; ++c) out[c] *= m.rescale[by_query ? r : c];
      }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
