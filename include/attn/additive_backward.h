// Gradients of additive attention.
#pragma once

#include "attn/additive_attention.h"
#include "attn/backward.h"
#include "attn/detail/layers/checked_additive_backward.h"

namespace attn {

/// The gradients of a call of additive attention. Those of parameters are (heads, rows, columns), with one head where
/// all heads share the parameter, and one row for score_weight and bias. They are empty for a parameter that was not
/// given.
template <class Query, class Key, class Value, class T>
struct AdditiveGradients {
  Query query;                ///< shaped as the query
  Key key;                    ///< shaped as the key
  Value value;                ///< shaped as the value
  Tensor<T, 3> query_weight;  ///< (heads or 1, hidden, head_dim)
  Tensor<T, 3> key_weight;    ///< (heads or 1, hidden, key_dim)
  Tensor<T, 3> score_weight;  ///< (heads or 1, 1, hidden)
  Tensor<T, 3> bias;          ///< (heads or 1, 1, hidden)
};

inline namespace ATTN_BUILT_FOR {

/// The gradients of a loss with respect to query, key, value and the parameters of the score, given the gradient with
/// respect to the output:
///
///     auto r = attn::additive_attention(q, k, v, {W_q, W_k, w, b}, mods, options);
///     auto g = attn::additive_attention_backward(grad_out, q, k, v, {W_q, W_k, w, b}, r, mods, options);
///     g.query, g.key, g.value, g.query_weight.matrix(0), g.key_weight, g.score_weight, g.bias
///
/// They are exact for what additive_attention() computes. Arguments, dropped pairs, rows without keys and mods that
/// learn are as in attention_backward(). Results are the same bits for any number of threads. Cost: about two and a
/// half times additive_attention(), because hyperbolic tangents are formed twice. Extra memory: O((q_len + kv_len) *
/// hidden).
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
template <class G, class Q, class K, class V, class R, class M = Options>
auto additive_attention_backward(const G& grad_out, const Q& query, const K& key, const V& value,
                                 const AdditiveScoreFor<Q>& score, const R& result, const M& mods = {},
                                 const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditiveBackward call(grad_out, query, key, value, score, with.mods, with.options);
  auto grads = call.gradients();
  call.run(grads, result.out, result.lse);
  return grads;
}

/// additive_attention_backward() into the caller's memory. Gradients of query, key and value are overwritten; those of
/// the parameters are added to what `grads` views, and those that it does not give are not wanted. None may overlap an
/// input, a parameter or another gradient.
template <class GQ, class GK, class GV, class G, class Q, class K, class V, class Out, class Lse, class M = Options>
void additive_attention_backward_into(
    GQ&& grad_query, GK&& grad_key, GV&& grad_value,
    const AdditiveScoreGradients<detail::computed_t<typename detail::Traits<Q>::Scalar>>& grads, const G& grad_out,
    const Q& query, const K& key, const V& value, const AdditiveScoreFor<Q>& score, const Out& out, const Lse& lse,
    const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditiveBackward call(grad_out, query, key, value, score, with.mods, with.options);
  call.run_into(grad_query, grad_key, grad_value, grads, out, lse);
}

/// The same gradients as additive_attention_backward() by their definition, with all weights in memory. It is the
/// reference for tests. The output is not needed.
template <class G, class Q, class K, class V, class M = Options>
auto naive_additive_attention_backward(const G& grad_out, const Q& query, const K& key, const V& value,
                                       const AdditiveScoreFor<Q>& score, const M& mods = {},
                                       const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedAdditiveBackward call(grad_out, query, key, value, score, with.mods, with.options);
  auto grads = call.gradients();
  call.naive(grads);
  return grads;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
