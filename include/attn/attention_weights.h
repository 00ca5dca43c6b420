// Attention weights tile by tile, and their statistics, computed without holding all weights in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "attn/attention.h"

namespace attn {

/// A tile of the attention weights of one head: query rows `rows` by keys `keys`.
template <class T>
struct WeightTile {
  Index batch;                     ///< the batch element, or sequence of a cache
  Index head;                      ///< the query head
  Range rows;                      ///< query rows, counted from 0
  Range keys;                      ///< rows of keys, counted from 0
  TensorView<const T, 2> weights;  ///< (rows, keys); valid during the callback
};

/// The largest weights of each query in descending order, and their keys, both (batch, heads, q_len, count). If a query
/// keeps fewer keys, the remaining entries have key -1 and weight 0.
template <class T>
struct TopWeights {
  Tensor<Index, 4> keys;  ///< rows of the keys, counted from 0
  Tensor<T, 4> weights;   ///< their weights
};

namespace detail::inline ATTN_BUILT_FOR {

/// The log-sum-exps that weights are recomputed from, and their rounding errors.
template <class T>
struct CheckedLse {
  TensorView<const T, 3> lse;
  LseRests<T> rests;
  bool is_of_other_scores = false;  ///< see lse_is_of_other_scores(); they are then computed again
};

/// Recomputes the weight tiles of a call from its queries, keys and log-sum-exps.
template <class T>
class WeightTiles {
 public:
  WeightTiles(const CallTensors<T>& tensors, const CheckedLse<T>& lse, const TileMods<T>* mods, VectorSet vectors)
      : tensors_(tensors),
        lse_(lse),
        mods_(mods),
        vectors_(vectors),
        family_(tensors.score                  ? tensors.score->family
                : tensors.problem.sigmoid_bias ? sigmoid_family<T>(vectors)
                                               : kernel_family<T>(vectors)),
        tiles_(family_, tensors.problem.q_len, false) {}

  /// Calls visit(tile) for all tiles in which a weight may differ from 0, head by head, with ascending rows and keys.
  /// Each head is a task.
  template <class Visit>
  void run(const Executor& executor, const Visit& visit) const {
    const Problem& p = tensors_.problem;
    if (p.q_len == 0 || p.kv_len == 0) return;
    const TileLayout<T> layout(
        {.queries = tiles_.most_queries(), .query = p.head_dim, .out = 1, .packed_key = p.head_dim});
    const double flops = 2 * static_cast<double>(p.batch * p.heads) * static_cast<double>(p.q_len) *
                         static_cast<double>(p.kv_len) * static_cast<double>(p.head_dim);
    const Workers workers({flops}, executor);
    const Workspace workspace(layout.bytes(), workers.count());
    workers.run(p.batch * p.heads, [&](Index task, int worker) {
      for (Index tile = 0; tile < tiles_.count(); ++tile)
        one_tile({task / p.heads, task % p.heads, tile, tiles_.rows(tile)}, layout.at(workspace.of(worker)), visit);
    });
  }

 private:
  template <class Visit>
  void one_tile(const QueryTile& queries, TileMemory<T> m, const Visit& visit) const {
    const Problem& p = tensors_.problem;
    const KernelSet<T>& kernels = family_.set_for(queries.rows.size());
    const Index last = queries.rows.size() - 1;
    load_query(family_, tensors_.query(queries), last + 1, p.head_dim, static_cast<T>(p.scale), kernels.queries,
               m.packed_key, m);
    if (tensors_.score) m.score_weight = tensors_.score->of(queries.head);
    // The softmax step computes e^(score - max), to which each query's factor is applied. If `max` is the log-sum-exp,
    // the factor is 1, up to its rounding error.
    T* const factors = m.out;
    if (lse_.is_of_other_scores) sum_weights(queries, m);
    bool has_factors = lse_.is_of_other_scores;
    for (Index i = 0; i < kernels.queries; ++i) {
      if (p.sigmoid_bias) {
        m.max[i] = static_cast<T>(-*p.sigmoid_bias);
        continue;
      }
      const T& lse = lse_.lse(queries.batch, queries.head, queries.rows.begin + std::min(i, last));
      const T rest = lse_.rests.of(&lse);
      if (lse_.is_of_other_scores) {
        factors[i] = factor_of(m.max[i], m.sum[i], lse, rest);
      } else {
        m.max[i] = lse;
        has_factors |= rest != T(0);
        factors[i] = std::exp(-rest);
      }
    }
    for_each_key_tile(queries, m, [&](const Tile& tile, const Range& rows) {
      const Index keys = rows.size();
      std::fill_n(m.tile_max, kernels.queries, -kInfinity);
      if (p.changes_weights) family_.find_dropped(m, kernels.queries, keys);
      kernels.softmax(m, keys, Rows<T>{nullptr, 0}, 0);
      for (Index key = 0; has_factors && key < keys; ++key)
        for (Index i = 0; i < kernels.queries; ++i) m.scores[key * kernels.queries + i] *= factors[i];
      if (p.changes_weights) mods_->change_weights(vectors_, {m.scores, kernels.queries, nullptr, m.dropped, tile});
      if (const T factor = static_cast<T>(mods_->kept_factor()); factor != T(1)) {
        mods_->drop_weights(vectors_, m.scores, WeightOrder::keys_by_queries, kernels.queries, tile);
        for (Index i = 0; i < keys * kernels.queries; ++i) m.scores[i] *= factor;
      }
      visit(WeightTile<T>{queries.batch, queries.head, queries.rows, rows,
                          TensorView<const T, 2>(m.scores, {last + 1, keys}, {1, kernels.queries})});
    });
  }

  /// Computes the maximum of the scores of each query, and the sum of e^(score - max).
  void sum_weights(const QueryTile& queries, const TileMemory<T>& m) const {
    const KernelSet<T>& kernels = family_.set_for(queries.rows.size());
    const T sink = static_cast<T>(mods_->sink(queries.head));
    std::fill_n(m.max, kernels.queries, sink);
    std::fill_n(m.sum, kernels.queries, sink == -kInfinity ? T(0) : T(1));
    std::fill_n(m.sum_rest, kernels.queries, T(0));
    for_each_key_tile(queries, m, [&](const Tile&, const Range& rows) {
      family_.find_max(m, kernels.queries, rows.size());
      kernels.softmax(m, rows.size(), Rows<T>{nullptr, 0}, 0);
    });
    for (Index i = 0; i < kernels.queries; ++i) add_rest(m.sum[i], m.sum_rest[i]);
  }

  /// The factor that turns e^(score - max) into weights: 1 / sum, or e^(max - lse) if the given lse includes keys of
  /// other calls. It does if it exceeds the sum by more than other kernels explain: those for bf16 have errors of
  /// 1.1e-4 (see Bf16Softmax), and those for single queries add up products, which may cancel, in another order.
  T factor_of(T max, T sum, T lse, T rest) const {
    if (sum == T(0)) return 0;
    const T other_keys = lse - max - std::log(sum) + rest;
    const T in_bf16 = tensors_.q.dtype() == DType::bf16 ? T(0x1p-12) : T(0);
    const T most = in_bf16 + 128 * std::numeric_limits<T>::epsilon() * (2 + std::abs(lse));
    return other_keys > most ? std::exp(max - lse - rest) : T(1) / sum;
  }

  /// Calls visit(pairs, rows of keys) for each tile of keys that some queries may keep, with its modded scores in
  /// m.scores.
  template <class Visit>
  void for_each_key_tile(const QueryTile& queries, const TileMemory<T>& m, const Visit& visit) const {
    const Problem& p = tensors_.problem;
    const KernelSet<T>& kernels = family_.set_for(queries.rows.size());
    const Range visited = visited_keys(tensors_, mods_, queries);
    for (Index j = visited.begin; j < visited.end; j += kKeyTile) {
      const Range rows{j, std::min(j + kKeyTile, visited.end)};
      const Tile tile = tensors_.pairs(queries, rows);
      const Coverage coverage = mods_->coverage(vectors_, tile);
      if (coverage == Coverage::none) continue;
      kernels.score(m, rows_of(family_, tensors_.key(queries, j), rows.size(), p.head_dim, 1, m.packed_key),
                    rows.size(), p.head_dim);
      if (coverage == Coverage::some || mods_->has_scores())
        mods_->apply(vectors_, m.scores, kernels.queries, tile, coverage == Coverage::some);
      visit(tile, rows);
    }
  }

  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  CallTensors<T> tensors_;
  CheckedLse<T> lse_;
  const TileMods<T>* mods_;
  VectorSet vectors_;
  const KernelFamily<T>& family_;
  QueryTiles<T> tiles_;
};

/// Returns a checked view of the log-sum-exps that weights are recomputed from. `groups`: whether a mask groups tokens.
template <class T, class Lse>
CheckedLse<T> checked_weight_lse(const Lse& lse, const CallTensors<T>& tensors, bool groups, const Options& options) {
  const Problem& problem = tensors.problem;
  const auto rows = lse_rank3(lse);
  if (problem.sigmoid_bias && rows.size() == 0) return {};
  check_has_lse(problem, "lse");
  const Shape<3> want{problem.batch, problem.heads, problem.q_len};
  require(rows.shape() == want, "lse has shape ", rows.shape(), ", expected ", want, " as (batch, heads, q_len)");
  static_assert(std::is_same_v<std::remove_cv_t<std::remove_pointer_t<decltype(rows.data())>>, T>,
                "attn: lse must have the scalar type of the query (float for 16-bit queries)");
  return {rows, rests_beside<T>(lse), lse_is_of_other_scores(tensors, groups, options)};
}

/// The checked arguments of a call whose weights are recomputed: a CheckedCall and the log-sum-exps it returned.
template <class Q, class K, class Lse, class M>
class CheckedWeights {
  const CheckedCall<Q, K, K, M> call_;

 public:
  using T = typename CheckedCall<Q, K, K, M>::T;

  CheckedWeights(const Q& query, const K& key, const Lse& lse, const M& mods, const Options& options)
      : call_(query, key, key, mods, options),
        problem(call_.problem),
        executor_(options.executor),
        mods_(call_.mods),
        tiles_(call_.tensors(), checked_weight_lse<T>(lse, call_.tensors(), Bound<M>::kIsGrouped, options), &mods_,
               vectors_of(isa_of(options))) {}
  CheckedWeights(const CheckedWeights&) = delete;

  const Problem& problem;

  /// See WeightTiles::run().
  template <class Visit>
  void for_each_tile(const Visit& visit) const {
    tiles_.run(executor_, visit);
  }

 private:
  const Executor executor_;
  const TileModsOf<T, Bound<M>> mods_;
  const WeightTiles<T> tiles_;
};

template <class Callback, class Q>
constexpr bool takes_tiles =
    std::is_invocable_v<const Callback&, const WeightTile<computed_t<typename Traits<Q>::Scalar>>&>;

}  // namespace detail::inline ATTN_BUILT_FOR
inline namespace ATTN_BUILT_FOR {

/// Calls `callback(const WeightTile<T>&)` for the weights of an attention call, tile by tile. Memory is linear in the
/// lengths, whereas the weights of naive_attention() take q_len * kv_len per head.
///
/// `lse` is what attention() returned for the same arguments. Tiles that a mask drops entirely are skipped; their
/// weights are 0. One thread visits all tiles of a head, in ascending order of rows and, within rows, of keys.
/// Callbacks for different heads may run concurrently. options.workspace is not used. Cost: the score product and the
/// softmax, about half of an attention() call, or all of it with few queries, or with bf16 tensors on processors with
/// bf16 products: sums over the keys are then computed again, because the forward pass used other kernels.
/// @throws std::invalid_argument as attention() does, and if the shape of lse is not (q_len) or (batch, heads, q_len).
template <class Q, class K, class Lse, class M = Mods<>, class Callback>
void for_each_weight_tile(const Q& query, const K& key, const Lse& lse, const M& mods, const Callback& callback,
                          const Options& options = {}) {
  static_assert(
      detail::takes_tiles<Callback, Q>,
      "attn::for_each_weight_tile: the callback must take a tile: [](const auto& tile) { tile.weights(i, j); }");
  detail::CheckedWeights(query, key, lse, mods, options).for_each_tile(callback);
}
/// As above, without mods.
template <class Q, class K, class Lse, class Callback>
requires(detail::takes_tiles<Callback, Q>) void for_each_weight_tile(const Q& query, const K& key, const Lse& lse,
                                                                     const Callback& callback,
                                                                     const Options& options = {}) {
  for_each_weight_tile(query, key, lse, Mods<>(), callback, options);
}

/// Returns the total weight of each key over all queries, (batch, heads, kv_len). Arguments and cost are those of
/// for_each_weight_tile().
template <class Q, class K, class Lse, class M = Options>
auto attention_mass(const Q& query, const K& key, const Lse& lse, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  const detail::CheckedWeights call(query, key, lse, with.mods, with.options);
  Tensor<T, 3> mass({call.problem.batch, call.problem.heads, call.problem.kv_len});
  call.for_each_tile([&](const WeightTile<T>& t) {
    for (Index j = 0; j < t.keys.size(); ++j) {
      T sum = 0;
      for (Index i = 0; i < t.rows.size(); ++i) sum += t.weights(i, j);
      mass(t.batch, t.head, t.keys.begin + j) += sum;
    }
  });
  return mass;
}

/// Returns the entropy of each query's weights, -sum w ln w in nats, (batch, heads, q_len). It is 0 for one key or
/// none, and ln n for n keys of equal weight. With dropout it means little, because weights do not sum to 1. Arguments
/// and cost are those of for_each_weight_tile().
template <class Q, class K, class Lse, class M = Options>
auto entropy(const Q& query, const K& key, const Lse& lse, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  const detail::CheckedWeights call(query, key, lse, with.mods, with.options);
  // These sums have many terms of the same sign; in float, the rounding errors of the tiles would add up.
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, T>;
  Tensor<Sum, 3> sums({call.problem.batch, call.problem.heads, call.problem.q_len});
  call.for_each_tile([&](const WeightTile<T>& t) {
    for (Index i = 0; i < t.rows.size(); ++i) {
      Sum sum = 0;
      for (Index j = 0; j < t.keys.size(); ++j) {
        const T w = t.weights(i, j);
        sum -= w > T(0) || std::isnan(w) ? w * std::log(w) : T(0);
      }
      sums(t.batch, t.head, t.rows.begin + i) += sum;
    }
  });
  Tensor<T, 3> entropies(sums.shape());
  std::transform(sums.data(), sums.data() + sums.size(), entropies.data(), [](Sum x) { return static_cast<T>(x); });
  return entropies;
}

/// Finds the `count` largest weights of each query, and their keys. Among equal weights, the first keys win; NaN counts
/// as larger than any number. A weight that a weight mod makes 0 or negative counts as dropped. Memory: O(q_len *
/// count) per head. Arguments and cost are those of for_each_weight_tile().
/// @throws std::invalid_argument as for_each_weight_tile() does, and for a negative count.
template <class Q, class K, class Lse, class M = Options>
auto top_k_weights(const Q& query, const K& key, const Lse& lse, Index count, const M& mods = {},
                   const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  detail::require(count >= 0, "top_k_weights: count must not be negative, but is ", count);
  const detail::CheckedWeights call(query, key, lse, with.mods, with.options);
  const Shape<4> shape{call.problem.batch, call.problem.heads, call.problem.q_len, count};
  TopWeights<T> top{Tensor<Index, 4>::uninitialized(shape), Tensor<T, 4>(shape)};
  std::fill_n(top.keys.data(), top.keys.size(), Index(-1));
  const auto is_before = [](T a, T b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
  call.for_each_tile([&](const WeightTile<T>& t) {
    for (Index i = 0; count > 0 && i < t.rows.size(); ++i) {
      Index* const keys = &top.keys(t.batch, t.head, t.rows.begin + i, 0);
      T* const weights = &top.weights(t.batch, t.head, t.rows.begin + i, 0);
      for (Index j = 0; j < t.keys.size(); ++j) {
        const T w = t.weights(i, j);
        if (!is_before(w, weights[count - 1])) continue;
        // Insertion sort suffices, because most weights are not among the largest.
        Index at = count - 1;
        for (; at > 0 && is_before(w, weights[at - 1]); --at) {
          weights[at] = weights[at - 1];
          keys[at] = keys[at - 1];
        }
        weights[at] = w;
        keys[at] = t.keys.begin + j;
      }
    }
  });
  return top;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
