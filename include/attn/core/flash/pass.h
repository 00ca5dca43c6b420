// A pass over the queries of a call, and the functions that its loops share.
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/call_tensors.h"
#include "attn/core/mods/tile_mods.h"
#include "attn/core/simd/softmax_state.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The number of the stretch that a key belongs to.
constexpr Index stretch_at(Index position) { return floor_div(position, kStretch * kKeyTile); }

/// The rows of keys worth visiting for some queries. Null mods: nothing is dropped.
template <class T>
Range visited_keys(const CallTensors<T>& tensors, const TileMods<T>* mods, const QueryTile& queries) {
  return mods ? tensors.keys_at(mods->kv_range(tensors.pairs(queries))) : Range{0, tensors.problem.kv_len};
}

/// One traversal of the queries of a call. A pass that resumes takes the contents of out and lse as the result of
/// earlier keys, and adds its own keys: the earlier ones weigh as much as one key with the score lse and the value out
/// (Dao et al. 2022, section 3.1). The sum of their e^(score - lse) differs from 1 only by the part of lse lost to
/// rounding; the loaded output must be multiplied by this sum.
template <class T>
struct Pass {
  const CallTensors<T>& tensors;      ///< the caller's: a copy took 3 % of a call with one query and one key
  const TileMods<T>* mods = nullptr;  ///< null: nothing is changed or dropped
  bool resumes = false;
  const CallTensors<T>& whole = tensors;  ///< the call that this pass belongs to; kernels are chosen for all of it
};

/// A pass with its kernels, and the operations that its loops use.
template <class T>
struct PassContext : Pass<T> {
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
  using Pass<T>::tensors, Pass<T>::mods, Pass<T>::resumes;

  ChosenKernels<T> kernels;

  const Problem& problem() const { return tensors.problem; }

  /// The position of key row 0 that is used to decide where sums over keys begin.
  Index first_position() const { return problem().row_invariant ? problem().kv_offset : 0; }

  /// The keys worth visiting for some queries, and how much of a tile of keys is kept.
  Range visited(const QueryTile& queries) const {
    Range keys = visited_keys(tensors, mods, queries);
    // Kernels sum weights in groups of kSummedKeys keys. A key that another query of the tile sees must not shift these
    // groups.
    if (problem().row_invariant)
      keys.begin -= std::min(floor_mod(keys.begin + first_position(), kSummedKeys), keys.begin);
    return keys;
  }
  Coverage coverage(const QueryTile& queries, const Range& visited, const Range& keys) const {
    if (intersect(visited, keys).empty()) return Coverage::none;
    return mods ? mods->coverage(kernels.vectors, tensors.pairs(queries, keys)) : Coverage::all;
  }

  /// Whether mods change the scores of a tile with this coverage.
  bool changes_scores(Coverage coverage) const { return coverage == Coverage::some || (mods && mods->has_scores()); }
  /// Applies the mods to scores (keys, queries), in which keys are `stride` elements apart.
  void apply_mods(T* scores, Index stride, const QueryTile& queries, const Range& keys, Coverage coverage) const {
    mods->apply(kernels.vectors, scores, stride, tensors.pairs(queries, keys), coverage == Coverage::some);
  }

  /// Divides the weights of a tile by m.whole_sum and applies the weight mods. Pairs in m.dropped get 0.
  void change_weights(const TileMemory<T>& m, Index width, const QueryTile& queries, const Range& keys) const {
    mods->change_weights(kernels.vectors, {m.weights, width, m.whole_sum, m.dropped, tensors.pairs(queries, keys)});
  }

  /// The factor by which dropout multiplies the weights that it keeps. Loops set dropped weights to 0 and multiply the
  /// output by this factor once.
  T kept_factor() const { return mods ? static_cast<T>(mods->kept_factor()) : T(1); }
  /// Zeroes the weights of pairs that dropout drops. `width`: number of query columns.
  void drop_weights(T* weights, WeightOrder order, Index width, const QueryTile& queries, const Range& keys) const {
    mods->drop_weights(kernels.vectors, weights, order, width, tensors.pairs(queries, keys));
  }

  /// Initialises maximum and sum of `count` queries to their values before the first key, or after the earlier passes.
  /// The columns from `count` to `width` repeat the last query.
  void begin(const QueryTile& queries, Index count, Index width, const TileState<T>& m) const {
    const auto sink = SoftmaxState<T>::of(sink_score(queries.head));
    const bool from_lse = resumes_from_lse();
    for (Index i = 0; i < width; ++i) {
      const SoftmaxState<T> state = from_lse ? state_of(tensors.lse_of(queries, std::min(i, count - 1))) : sink;
      m.max[i] = state.max;
      m.sum[i] = state.sum;
      m.sum_rest[i] = 0;
    }
  }

  /// Whether the keys belong to several stretches, if these begin at fixed positions.
  bool spans_stretches() const {
    const Index first = first_position(), len = problem().kv_len;
    return len > 0 && stretch_at(first) != stretch_at(first + len - 1);
  }
  /// Whether each stretch of keys begins with an empty state and is then merged into a result, which may be that of an
  /// earlier call. Results then do not depend on how stretches are divided into calls. A sink counts as the result of
  /// an earlier call. bf16 kernels keep sinks and earlier results apart in this way as well: TileState::excess must
  /// only be that of a sum over the keys.
  bool merges_stretches() const {
    if (!problem().row_invariant && !kernels.in_bf16()) return false;
    bool merges = resumes || (problem().row_invariant && spans_stretches());
    for (Index head = 0; !merges && mods && head < problem().heads; ++head) merges = mods->sink(head) != -kInfinity;
    return merges;
  }
  /// Like begin(), for a stretch that will be merged, or for a split after the first: without sinks and earlier passes.
  void begin_later(Index width, const TileState<T>& m) const {
    const auto none = problem().sigmoid_bias ? SoftmaxState<T>{sink_score(0), 0} : SoftmaxState<T>{};
    std::fill_n(m.max, width, none.max);
    std::fill_n(m.sum, width, none.sum);
    std::fill_n(m.sum_rest, width, T(0));
  }

  /// Loads a single query, rotated and multiplied by the scale.
  void load_query(const QueryTile& query, T* to) const {
    const RowsToRead from = tensors.query(query);
    const Index dim = problem().head_dim;
    const T* numbers = to;
    if (is_native_contiguous(from) && !tensors.rotation)
      numbers = reinterpret_cast<const T*>(from.data);
    else
      kernels.full_precision.pack_rows(from, 1, dim, to);
    if (tensors.rotation) tensors.rotation->rotate(to, tensors.token(query));
    kernels.full_precision.multiply(to, numbers, dim, static_cast<T>(problem().scale));
  }

  /// Stores out / sum, or 0 if no key was kept, and the log-sum-exp of a single query, row `r` of `m`.
  void store_result(const QueryTile& query, Index r, const TileState<T>& m) const {
    T* const out = m.out + r * problem().v_dim;
    const T inverse = m.sum[r] == T(0) ? T(0) : T(1) / m.sum[r];
    const RowsToWrite result = tensors.output(query);
    if (is_native_contiguous(result)) {
      kernels.full_precision.multiply(reinterpret_cast<T*>(result.data), out, problem().v_dim, inverse);
    } else {
      kernels.full_precision.multiply(out, out, problem().v_dim, inverse);
      kernels.full_precision.unpack_rows(out, 1, problem().v_dim, result);
    }
    store_lse(query, m.max + r, m.sum + r);
  }

  /// Loads the result of the earlier passes as totals; see merges_stretches(). Without earlier passes, the sink is the
  /// result. m.out must have the output of the earlier passes, which may be garbage for queries that kept no key.
  void load_totals(const QueryTile& queries, Index count, Index width, const TileState<T>& m) const {
    const Totals<T>& totals = m.totals;
    std::fill_n(totals.max, width, problem().sigmoid_bias ? T(0) : sink_score(queries.head));
    std::fill_n(totals.out_rest, width, T(0));
    for (Index i = 0; resumes_from_lse() && i < width; ++i) {
      const T& lse = tensors.lse_of(queries, std::min(i, count - 1));
      totals.max[i] = lse;
      totals.out_rest[i] = tensors.lse_rests.of(&lse);
    }
    if (!resumes) std::fill_n(totals.out, problem().v_dim * width, T(0));
    for (Index c = 0; resumes && c < problem().v_dim; ++c)
      for (Index i = 0; i < width; ++i)
        totals.out[c * width + i] = totals.max[i] == -kInfinity ? T(0) : m.out[c * width + i];
  }
  /// Stores the log-sum-exps of totals.
  void store_lse(const QueryTile& queries, const Totals<T>& totals) const {
    if (tensors.lse.data() == nullptr) return;
    for (Index i = 0; i < queries.rows.size(); ++i) {
      T& to = tensors.lse_of(queries, i);
      to = totals.max[i];
      if (tensors.lse_rests.wants(to)) tensors.lse_rests.set(&to, totals.out_rest[i]);
    }
  }

  /// Stores the log-sum-exps of the queries.
  void store_lse(const QueryTile& queries, const T* max, const T* sum) const {
    if (tensors.lse.data() == nullptr) return;
    const KeptLseRests<T> rests = tensors.lse_rests;
    for (Index i = 0; i < queries.rows.size(); ++i) {
      const SoftmaxState<T> state{max[i], sum[i]};
      T& to = tensors.lse_of(queries, i);
      if (resumes && state == state_of(to)) continue;  // no key was added: keep the bits of `to`
      const T lse = to = state.lse();
      if (rests.wants(lse)) rests.set(&to, state.lse_rest());
    }
  }

 private:
  template <class Byte>
  static bool is_native_contiguous(const DTypeRows<Byte>& rows) {
    return rows.dtype == DType::native && rows.column == 1;
  }

  /// Whether the log-sum-exps of earlier keys are part of the state. Sigmoids have none.
  bool resumes_from_lse() const { return resumes && !problem().sigmoid_bias; }
  SoftmaxState<T> state_of(const T& lse) const { return SoftmaxState<T>::of(lse, tensors.lse_rests.of(&lse)); }

  /// The score that adds to the denominator without a value: the sink of a head, or its counterpart for a sigmoid (see
  /// core/kernels/sigmoid_kernels.h). -inf if there is none.
  T sink_score(Index head) const {
    if (problem().sigmoid_bias) return static_cast<T>(-*problem().sigmoid_bias);
    return mods ? static_cast<T>(mods->sink(head)) : -kInfinity;
  }
};

/// Whether the result of some queries must be computed again, in full precision and without multiplying dropped pairs.
/// `sums` (queries) are the sums of their weights; `out` is their output, `size` contiguous elements; `dropped_any`
/// says whether a pair may have been dropped inside a tile that was added.
///
/// A dropped pair weighs 0, and 0 times a value is 0, unless the value is not finite. Such values are rare, so they are
/// not looked for beforehand; the output shows afterwards whether there was one.
///
/// Products and sums of large values may be infinite in bf16 where exact ones are not, because scores are not scaled
/// yet and weights may exceed 1. If all scores of a query become -inf in this way, it looks as if no key were kept.
template <class T>
bool must_compute_again(const ChosenKernels<T>& kernels, bool in_bf16, bool dropped_any, const T* sums, Index queries,
                        const T* out, Index size) {
  const auto is_sound = [](T sum) { return sum > T(0) && sum < std::numeric_limits<T>::infinity(); };
  if (in_bf16 && !std::all_of(sums, sums + queries, is_sound)) return true;
  return (dropped_any || in_bf16) && !kernels.full_precision.all_finite({out, 0}, 1, size);
}

/// The smallest range that holds all keys visited by some tiles of queries, or by some single queries.
template <class Tiles>
Range hull_of_visited(const Tiles& tiles) {
  Range all{0, 0};
  for (const auto& tile : tiles) all = hull(all, tile.visited);
  return all;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
