// Additive attention: a small network of one layer scores each query and key.
#pragma once

#include "attn/additive_score.h"
#include "attn/attention_weights.h"
#include "attn/detail/layers/checked_additive.h"

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// The parameters that queries of type Q are scored with.
template <class Q>
using AdditiveScoreFor = AdditiveScore<detail::computed_t<typename detail::Traits<Q>::Scalar>>;

/// Additive attention (Bahdanau, Cho, Bengio 2015, appendix A.1.2):
///
///     out = softmax(mods(scale * score)) * value,   score_ij = sum over h of w_h tanh((Wq query_i + Wk key_j + b)_h)
///
///     attn::additive_attention(q, k, v, {W_q, W_k, w, b});
///     attn::additive_attention(q, k, v, {W_q, W_k, w}, attn::key_lengths(lengths), {.executor = attn::serial()});
///
/// Its sibling, the dot-product score of Luong et al. (2015), is attention() with `{.scale = 1}`.
///
/// @param query, key, value  as in attention(), but queries and keys may have different numbers of features.
/// @param score  W_q (hidden, head_dim), W_k (hidden, key_dim), w (hidden) and b (hidden); see AdditiveScore. All but w
/// may be left out.
/// @param mods     all of them, after the score.
/// @param options  as in attention(), but scale is 1 by default, `compute` rounds nothing, and workspace must have
/// additive_workspace_bytes().
/// @returns out and lse as attention() does, under the same contract.
///
/// Work: q_len * kv_len * hidden hyperbolic tangents for each head, each as long as some 16 multiplications and
/// additions, beside which all else is small; with one core and AVX-512 they ran at 0.9 of the rate of tanh alone.
/// Extra memory: queries and keys with `hidden` features, O((q_len + kv_len) * hidden), never O(q_len * kv_len).
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
template <class Q, class K, class V, class M = Options>
auto additive_attention(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                        const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  auto result = detail::Answer<Q>::result(call.problem);
  using T = typename decltype(call)::T;
  const detail::ProjectedCall<T> projected(call, call.workspace);
  detail::with_result_views<T>(call.problem, result, call.options, [&](const detail::ResultViews<T>& to) {
    detail::flash(projected.tensors(to, call.v), call.mods, projected.options());
  });
  return result;
}

/// additive_attention() into the caller's memory; see attention_into(). Neither may overlap an input or a parameter.
template <class Out, class Lse, class Q, class K, class V, class M = Options>
void additive_attention_into(Out&& out, Lse&& lse, const Q& query, const K& key, const V& value,
                             const AdditiveScoreFor<Q>& score, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  using T = typename decltype(call)::T;
  const detail::ResultViews<T> to = call.caller_results(out, lse);
  const detail::ProjectedCall<T> projected(call, call.workspace);
  detail::flash(projected.tensors(to, call.v), call.mods, projected.options());
}

/// What such a call would do, without doing it: explain() for this score. Its workspace is additive_workspace_bytes().
template <class Q, class K, class V, class M = Options>
Explanation explain_additive(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                             const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  return detail::ProjectedCall<typename decltype(call)::T>::explanation(call);
}

/// The bytes that Options::workspace must have for such a call: queries and keys with `hidden` features, and what
/// workspace_bytes() says of attention() over these. What is left to allocate are copies of the parameters, for each
/// thread the tiles in which queries and keys are multiplied by theirs, and, where an output has 16 bits and a mask
/// takes several passes, the output in float.
template <class Q, class K, class V, class M = Options>
std::size_t additive_workspace_bytes(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                                     const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  return static_cast<std::size_t>(detail::ProjectedCall<typename decltype(call)::T>::workspace_bytes(call));
}

/// Additive attention by its definition, with all weights in memory: the reference for tests and the yardstick for
/// speed. Arguments and errors as for additive_attention(); also returns `weights`, as naive_attention() does.
template <class Q, class K, class V, class M = Options>
auto naive_additive_attention(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                              const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  auto result = detail::Answer<Q>::naive_result(call.problem);
  call.naive(detail::as_rank4(view(result.weights)), result.out, result.lse);
  return result;
}

/// Calls `callback(const WeightTile<T>&)` for the weights of such a call, tile by tile: for_each_weight_tile() with
/// this score. `lse` is what additive_attention() returned for the same arguments. Cost: as additive_attention().
/// @throws as for_each_weight_tile().
template <class Q, class K, class Lse, class M, class Callback>
void for_each_additive_weight_tile(const Q& query, const K& key, const Lse& lse, const AdditiveScoreFor<Q>& score,
                                   const M& mods, const Callback& callback, const Options& options = {}) {
  static_assert(detail::takes_tiles<Callback, Q>,
                "attn::for_each_additive_weight_tile: the callback must take a tile: [](const auto& tile) { "
                "tile.weights(i, j); }");
  const detail::CheckedAdditive call(query, key, key, score, mods, options);
  using T = typename decltype(call)::T;
  const auto checked = detail::checked_weight_lse<T>(lse, call.problem);
  const detail::ProjectedCall<T> projected(call);
  const detail::TileModsOf<T, detail::Bound<M>> tile_mods(call.mods);
  detail::WeightTiles<T>(projected.tensors({}, call.k), checked, &tile_mods,
                         detail::vectors_of(detail::isa_of(call.options)))
      .run(call.options.executor, callback);
}

/// The weights themselves, (batch, heads, q_len, kv_len) or for matrices (1, 1, q_len, kv_len), 0 where a pair is
/// dropped: for looking at them, since they take memory O(q_len * kv_len). Arguments as above.
template <class Q, class K, class Lse, class M = Options>
auto additive_attention_weights(const Q& query, const K& key, const Lse& lse, const AdditiveScoreFor<Q>& score,
                                const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  const auto q = detail::as_rank4(view(detail::evaluated(query))), k = detail::as_rank4(view(detail::evaluated(key)));
  Tensor<T, 4> weights({q.dim(0), q.dim(1), q.dim(2), k.dim(2)});
  for_each_additive_weight_tile(
      query, key, lse, score, with.mods,
      [&](const WeightTile<T>& t) {
        for (Index i = 0; i < t.rows.size(); ++i)
          for (Index j = 0; j < t.keys.size(); ++j)
            weights(t.batch, t.head, t.rows.begin + i, t.keys.begin + j) = t.weights(i, j);
      },
      with.options);
  return weights;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
