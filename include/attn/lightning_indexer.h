// lightning_indexer(): the keys that DeepSeek's sparse attention selects for each query.
#pragma once

#include <type_traits>
#include <vector>

#include "attn/cache/bound_sequences.h"
#include "attn/cache/key_indexer.h"

namespace attn {

/// Options of lightning_indexer().
struct LightningIndexer {
  Index count = 2048;  ///< keys that a query keeps; all of them if it sees fewer
  bool causal = true;  ///< whether keys after the query are excluded
};

namespace detail::inline ATTN_BUILT_FOR {

/// Views the weights of an indexer, (batch, tokens, heads), as (batch, 1, tokens, heads).
template <class T, class W>
DTypeView<const T> indexer_weights(const W& weights, const DTypeView<const T>& q, Index keys_heads,
                                   const LightningIndexer& config) {
  const auto w = view(weights);
  require(config.count > 0, "lightning_indexer: count must be positive, but is ", config.count);
  require(keys_heads == 1, "lightning_indexer: all heads of the query share one key head, but there are ", keys_heads);
  const Shape<3> want{q.dim(0), q.dim(2), q.dim(1)};
  require(w.shape() == want, "lightning_indexer: weights have shape ", w.shape(), ", expected ", want,
          " as (batch, tokens, heads)");
  using U = std::remove_pointer_t<decltype(w.data())>;
  return TensorView<U, 4>(w.data(), {want[0], 1, want[1], want[2]}, {w.stride(0), 0, w.stride(1), w.stride(2)});
}

/// Rejects, with a one-sentence error, wrong types of an indexer's query and weights.
template <class T, class Q, class W>
constexpr bool check_indexer() {
  constexpr bool kHasRanks = rank_of<Q> == 4 && rank_of<W> == 3;
  static_assert(kHasRanks,
                "attn::lightning_indexer: query must be (batch, heads, tokens, dim), weights (batch, tokens, heads)");
  if constexpr (kHasRanks)
    static_assert(std::is_same_v<computed_t<typename Traits<Q>::Scalar>, T> &&
                      std::is_same_v<computed_t<typename Traits<W>::Scalar>, T>,
                  "attn::lightning_indexer: query, keys and weights must have the same scalar type (float and 16-bit "
                  "floats may be mixed)");
  return kHasRanks;
}

}  // namespace detail::inline ATTN_BUILT_FOR

inline namespace ATTN_BUILT_FOR {

/// Returns the keys with the highest index scores for each query, as lists for select(). The index score of a query t
/// and a key s is the sum over the heads j of weights(t, j) * relu(query(t, j) . key(s)) (DeepSeek-AI 2025,
/// "DeepSeek-V3.2", eq. 1, the "lightning indexer" of DeepSeek sparse attention):
///
///     auto keys = attn::lightning_indexer(index_q, index_k, weights, {.count = 2048});
///     auto out = attn::attention(q, k, v, attn::select(keys)).out;
///
/// Shapes: query (batch, heads, tokens, dim), key (batch, 1, kv_len, dim), weights (batch, tokens, heads). The result
/// is (batch, 1, tokens, n), where n is config.count, or kv_len if that is less. Each query has the positions of its
/// keys in ascending order, then -1 if it sees fewer than n keys. Position kv_offset is that of key row 0, as for mods.
///
/// The selection is exact up to the rounding of the scores. If scores are equal, the earlier key wins; a score that is
/// NaN counts as infinity. A query that sees at most n keys keeps them all, and their scores are not computed. The
/// selection of a query does not depend on the other queries or the number of threads. It is not differentiated.
///
/// Of the options, q_offset, q_offsets, kv_offset, executor and isa are used, as in attention(). A factor of the
/// scores, such as 1/sqrt(dim), would not change the selection.
///
/// Cost: 2 * heads * dim flops per pair that a query sees. Memory: the result, and per thread the queries of up to 16
/// tokens and 16 * 2 * n scores with their keys; queries x keys are never stored.
/// @throws std::invalid_argument if sizes disagree, if there are several key heads, or if count is not positive.
template <class Q, class K, class W>
Tensor<Index, 4> lightning_indexer(const Q& query, const K& key, const W& weights, const LightningIndexer& config = {},
                                   const Options& options = {}) {
  using T = detail::computed_t<typename detail::Traits<K>::Scalar>;
  static_assert(detail::Traits<K>::kRank == 4, "attn::lightning_indexer: key must be (batch, 1, kv_len, dim)");
  if constexpr (detail::check_indexer<T, Q, W>()) {
    const detail::DTypeView<const T> q = view(query), k = view(key);
    const detail::DTypeView<const T> w = detail::indexer_weights<T>(weights, q, k.dim(1), config);
    const Problem p = detail::make_problem<T>(q, k, k, options);
    std::vector<typename detail::Indexer<T>::Sequence> sequences;
    for (Index b = 0; b < p.batch; ++b) sequences.push_back({k, b, p.kv_len, p.first_query(b), p.kv_offset, nullptr});
    const auto& choice = detail::kKernelChoice<T, !detail::hold_computed_numbers<Q, K, W>()>;
    const auto kernels = choice.choose(options, detail::Bf16Products::none);
    return detail::Indexer<T>(q, w, sequences, kernels.family, config.count, config.causal, options.executor).select();
  }
}

/// lightning_indexer() over the keys of a cache, whose values are not read: a KvCache (`.v_dim = 1` makes its values
/// small), sequences of a PagedKvCache, a layer of KvCaches (whose latent rows have no values), or a KvView, with
/// elements of any type, such as Float8E4M3. Each sequence has its own length; by default its queries are its last
/// tokens. If the cache has a rope, queries are rotated as they are read. n is config.count, or the length of the
/// longest sequence if that is less.
template <class Q, detail::KvSource Cache, class W>
Tensor<Index, 4> lightning_indexer(const Q& query, const Cache& cache, const W& weights,
                                   const LightningIndexer& config = {}, const Options& options = {}) {
  using T = detail::scalar_of<Cache>;
  if constexpr (detail::check_indexer<T, Q, W>()) {
    const auto& keys = cache.view();
    const detail::DTypeView<const T> q = view(query);
    detail::require(q.dim(0) == keys.size(), "lightning_indexer: query has batch ", q.dim(0), ", the cache has ",
                    keys.size(), " sequences");
    const detail::DTypeView<const T> w = detail::indexer_weights<T>(weights, q, keys.kv_heads(), config);
    detail::check_q_offsets(options, keys.size());
    std::vector<typename detail::Indexer<T>::Sequence> sequences;
    std::vector<detail::Rotation<T>> rotations;
    rotations.reserve(static_cast<std::size_t>(keys.size()));  // sequences refer to them
    for (Index s = 0; s < keys.size(); ++s) {
      Options own = options;
      own.q_offsets = {};
      own.q_offset = detail::q_offset_of(options, s);
      own.kv_offset = detail::kv_offset_of(options, keys, s);
      const detail::KvRows<T> rows = keys.keys(s);
      const auto one = q.part(s * q.stride(0), {1, q.dim(1), q.dim(2), q.dim(3)}, q.strides()),
                 like = rows.part(0, {1, 1, keys.length(s), keys.head_dim()}, rows.strides());
      const Problem p = detail::make_problem<T>(one, like, like, own);
      const Index first = p.first_query_among_keys(0);
      if (keys.rope()) rotations.push_back(detail::rotation_of<T>(keys.rope(), keys.positions(s), first, p.q_len));
      sequences.push_back({rows, 0, p.kv_len, p.q_offset, p.kv_offset, keys.rope() ? &rotations.back() : nullptr});
    }
    const auto& choice = detail::hold_computed_numbers<Q, W>() ? keys.kernels() : keys.kernels_with_halves();
    const auto kernels = choice.choose(options, detail::Bf16Products::none);
    return detail::Indexer<T>(q, w, sequences, kernels.family, config.count, config.causal, options.executor).select();
  }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
