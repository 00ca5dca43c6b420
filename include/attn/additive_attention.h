// Additive (Bahdanau) attention: a one-layer network scores each pair of query and key.
#pragma once

#include <type_traits>

#include "attn/additive_score.h"
#include "attn/attention_weights.h"
#include "attn/layers/checked_additive.h"

namespace attn::inline ATTN_BUILT_FOR {

/// The AdditiveScore for queries of type Q.
template <class Q>
using AdditiveScoreFor = AdditiveScore<detail::computed_t<typename detail::Traits<Q>::Scalar>>;

/// Computes additive attention (Bahdanau, Cho, Bengio 2015, appendix A.1.2):
///
///     out = softmax(mods(scale * score)) * value,   score_ij = sum over h of w_h tanh((Wq query_i + Wk key_j + b)_h)
///
///     attn::additive_attention(q, k, v, {W_q, W_k, w, b});
///     attn::additive_attention(q, k, v, {W_q, W_k, w}, attn::key_lengths(lengths), {.executor = attn::serial()});
///
/// The dot-product score of Luong et al. (2015) is attention() with `{.scale = 1}`.
///
/// @param query, key, value  as in attention(), but queries and keys may have different numbers of features.
/// @param score  W_q (hidden, head_dim), W_k (hidden, key_dim), w (hidden) and b (hidden); see AdditiveScore. All but w
/// are optional.
/// @param mods     any mods; they are applied to scale * score.
/// @param options  as in attention(), except that scale defaults to 1, `compute` has no effect, and options.workspace
/// must hold at least additive_workspace_bytes() bytes.
/// @returns out and lse, with the same contract as attention().
///
/// Work: q_len * kv_len * hidden hyperbolic tangents per head, each about as costly as 16 multiplications and
/// additions; all other work is small. On one AVX-512 core, the call ran at 90 % of the throughput of evaluating the
/// hyperbolic tangents alone. Extra memory: the projected queries and keys, O((q_len + kv_len) * hidden), never O(q_len
/// * kv_len).
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <class Q, class K, class V, class M = Options>
auto additive_attention(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                        const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  auto result = detail::Answer<Q>::result(call.problem);
  using T = typename decltype(call)::T;
  detail::ProjectedCall projected(call);
  projected.project(call.workspace);
  detail::with_result_views<T>(call.problem, result, call.options, [&](const detail::ResultViews<T>& to) {
    detail::flash(projected.tensors(to, call.v), call.mods, projected.options());
  });
  return result;
}

/// Computes additive_attention() into the caller's memory; see attention_into(). Neither output may overlap an input or
/// a parameter.
template <class Out, class Lse, class Q, class K, class V, class M = Options>
void additive_attention_into(Out&& out, Lse&& lse, const Q& query, const K& key, const V& value,
                             const AdditiveScoreFor<Q>& score, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  using T = typename decltype(call)::T;
  const detail::ResultViews<T> to = call.caller_results(out, lse);
  detail::ProjectedCall projected(call);
  projected.project(call.workspace);
  detail::flash(projected.tensors(to, call.v), call.mods, projected.options());
}

/// Describes how additive_attention() would run, without running it; see explain(). Explanation::workspace_bytes is
/// additive_workspace_bytes().
template <class Q, class K, class V, class M = Options>
Explanation explain_additive(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                             const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  return detail::ProjectedCall(call).explanation();
}

/// Returns the size in bytes that Options::workspace must have for additive_attention(): the size of the projected
/// queries and keys, plus workspace_bytes() of attention() over them. The call still allocates copies of the parameters
/// and each thread's tiles for the projections. If the output is 16-bit and a mask takes several passes, it also
/// allocates the output in float.
template <class Q, class K, class V, class M = Options>
std::size_t additive_workspace_bytes(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                                     const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  return static_cast<std::size_t>(detail::ProjectedCall(call).workspace_bytes());
}

/// Computes additive attention by its definition, with all weights in memory: the reference for tests and the baseline
/// for benchmarks. Arguments and errors are those of additive_attention(); `weights` are returned too, as by
/// naive_attention().
template <class Q, class K, class V, class M = Options>
auto naive_additive_attention(const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score,
                              const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditive call(query, key, value, score, with.mods, with.options);
  auto result = detail::Answer<Q>::naive_result(call.problem);
  call.naive(detail::as_rank4(view(result.weights)), result.out, result.lse);
  return result;
}

/// Calls `callback(const WeightTile<T>&)` for the weights of additive attention, tile by tile; see
/// for_each_weight_tile(). `lse` is what additive_attention() returned for the same arguments. Costs as much as
/// additive_attention().
/// @throws as for_each_weight_tile().
template <class Q, class K, class Lse, class M, class Callback>
void for_each_additive_weight_tile(const Q& query, const K& key, const Lse& lse, const AdditiveScoreFor<Q>& score,
                                   const M& mods, const Callback& callback, const Options& options = {}) {
  static_assert(detail::takes_tiles<Callback, Q>,
                "attn::for_each_additive_weight_tile: the callback must take a tile: [](const auto& tile) { "
                "tile.weights(i, j); }");
  const detail::CheckedAdditive call(query, key, key, score, mods, options);
  using T = typename decltype(call)::T;
  detail::ProjectedCall projected(call);
  projected.project();
  const detail::CallTensors<T> tensors = projected.tensors({}, call.k);
  const auto checked = detail::checked_weight_lse<T>(lse, tensors, detail::Bound<M>::kIsGrouped, call.options);
  const detail::TileModsOf<T, detail::Bound<M>> tile_mods(call.mods);
  detail::WeightTiles<T>(tensors, checked, &tile_mods, detail::vectors_of(detail::isa_of(call.options)))
      .run(call.options.executor, callback);
}

/// Returns the weights of additive attention, (batch, heads, q_len, kv_len), or (1, 1, q_len, kv_len) for matrices; 0
/// where a pair is dropped. Meant for inspection only: the weights take O(q_len * kv_len) memory per head. Arguments
/// are those of for_each_additive_weight_tile().
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

/// Not to be called: fails to compile, with a message that says that additive attention has no forward mode.
template <class Q, class K, class V, class DQ, class DK, class DV, class T>
void attention_jvp(const Q&, const K&, const V&, const DQ&, const DK&, const DV&, const AdditiveScore<T>&,
                   const Options& = {}) {
  constexpr bool kIsOfProducts = std::is_void_v<T>;
  static_assert(kIsOfProducts,
                "attn: additive attention does not support forward mode; use attn::additive_attention_backward()");
}

}  // namespace attn::inline ATTN_BUILT_FOR
