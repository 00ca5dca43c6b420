// Gradients of additive attention.
#pragma once

#include "attn/additive_attention.h"
#include "attn/backward.h"
#include "attn/layers/checked_additive_backward.h"

namespace attn {

/// The gradients of additive attention. Gradients of parameters are (heads, rows, columns), with one head if all heads
/// share the parameter, and one row for score_weight and bias. The gradient of an omitted parameter is empty.
template <class Query, class Key, class Value, class T>
struct AdditiveGradients {
  Query query;                ///< shaped like the query
  Key key;                    ///< shaped like the key
  Value value;                ///< shaped like the value
  Tensor<T, 3> query_weight;  ///< (heads or 1, hidden, head_dim)
  Tensor<T, 3> key_weight;    ///< (heads or 1, hidden, key_dim)
  Tensor<T, 3> score_weight;  ///< (heads or 1, 1, hidden)
  Tensor<T, 3> bias;          ///< (heads or 1, 1, hidden)
};

inline namespace ATTN_BUILT_FOR {

/// Returns the gradients of a loss with respect to query, key, value and the score's parameters, given the gradient
/// with respect to the output:
///
///     auto r = attn::additive_attention(q, k, v, {W_q, W_k, w, b}, mods, options);
///     auto g = attn::additive_attention_backward(grad_out, q, k, v, {W_q, W_k, w, b}, r, mods, options);
///     g.query, g.key, g.value, g.query_weight.matrix(0), g.key_weight, g.score_weight, g.bias
///
/// The results are the exact gradients of additive_attention(). Arguments, dropped pairs, rows without keys and learned
/// mods are treated as in attention_backward(). Results are bit-identical for any number of threads. Cost: about 2.5
/// times that of additive_attention(), because the hyperbolic tangents are computed twice. Extra memory: O((q_len +
/// kv_len) * hidden).
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
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

/// Computes additive_attention_backward() into the caller's memory. Gradients of query, key and value are overwritten;
/// gradients of parameters are added to the memory that `grads` views. A gradient whose view is absent from `grads` is
/// discarded. No gradient may overlap an input, a parameter or another gradient.
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

/// Computes the gradients of additive_attention_backward() by their definition, with all weights in memory. It is the
/// reference for tests and does not need the output.
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
