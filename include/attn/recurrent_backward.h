// Gradients of linear attention, its gated forms and the gated delta rule.
#pragma once

#include <utility>

#include "attn/delta_rule.h"
#include "attn/detail/linear_attention/checked_recurrent_backward.h"

namespace attn {

inline namespace ATTN_BUILT_FOR {

/// The gradients of a loss with respect to query, key and value of linear_attention(), given the gradient with respect
/// to its output. The arguments are those of the forward call, and nothing of its result is needed. Lambdas are
/// differentiated by dual numbers (see Dual); the random vectors of favor() are constants.
///
/// @param grad_out  shaped as out.
/// @returns tensors .query, .key and .value, shaped as query, key and value.
///
/// Heads that share keys add up their gradients. What no query sees gets gradient 0, and so does a query that sees
/// nothing, or whose normaliser is 0. Results are the same bits for any number of threads. Cost: four to seven times
/// the forward call. Memory: for each thread, one state (features, v_dim) in front of each 64 causal tokens, which a
/// first pass computes again; so it grows with the length.
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
template <class Gr, class Q, class K, class V, class Map, class M = Options>
requires(!detail::is_recurrent_state<Gr>) auto linear_attention_backward(const Gr& grad_out, const Q& query,
                                                                         const K& key, const V& value, const Map& map,
                                                                         const M& mods = {},
                                                                         const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  return detail::recurrent_gradients<Q, K, V>(grad_out, call, with.options);
}

/// linear_attention_backward() into the caller's memory, which is overwritten: matrices, or rank-4 tensors or views,
/// shaped as query, key and value. None may overlap an input or another gradient. With options.workspace nothing is
/// allocated that grows with the sizes. Arguments are checked before anything is written.
template <class GQ, class GK, class GV, class Gr, class Q, class K, class V, class Map, class M = Options>
requires(!detail::is_recurrent_state<Gr> && detail::is_feature_map<Map>) void linear_attention_backward_into(
    GQ&& grad_query, GK&& grad_key, GV&& grad_value, const Gr& grad_out, const Q& query, const K& key, const V& value,
    const Map& map, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  back.run(grad_query, grad_key, grad_value, detail::NoGates(), detail::NoGates(), detail::NoStates(), with.options);
}

/// The gradients of gated_attention(): as those of linear_attention(), and .log_gate, shaped as the gate.
template <class Gr, class Q, class K, class V, class G, class M = Options>
requires(!detail::is_recurrent_state<Gr>) auto gated_attention_backward(const Gr& grad_out, const Q& query,
                                                                        const K& key, const V& value, const G& log_gate,
                                                                        const M& mods = {},
                                                                        const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, detail::NoGates(), with.mods, with.options);
  return detail::recurrent_gradients<Q, K, V>(grad_out, call, with.options);
}
/// gated_attention_backward() into the caller's memory; see linear_attention_backward_into(). The gradient of the gate
/// is shaped as the gate; for decay_per_head() it is a tensor (kv_heads), which is summed up over the tokens in memory
/// of its own.
template <class GQ, class GK, class GV, class GG, class Gr, class Q, class K, class V, class G, class M = Options>
requires(!detail::is_recurrent_state<Gr>) void gated_attention_backward_into(
    GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate, const Gr& grad_out, const Q& query,
    const K& key, const V& value, const G& log_gate, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, detail::NoGates(), with.mods, with.options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  back.run(grad_query, grad_key, grad_value, grad_log_gate, detail::NoGates(), detail::NoStates(), with.options);
}

/// The gradients of gated_delta_rule(): as those of gated_attention(), and .beta, shaped as beta.
template <class Gr, class Q, class K, class V, class G, class B, class M = Options>
requires(!detail::is_recurrent_state<Gr>) auto gated_delta_rule_backward(const Gr& grad_out, const Q& query,
                                                                         const K& key, const V& value,
                                                                         const G& log_gate, const B& beta,
                                                                         const M& mods = {},
                                                                         const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  return detail::recurrent_gradients<Q, K, V>(grad_out, call, with.options);
}
/// gated_delta_rule_backward() into the caller's memory; see gated_attention_backward_into().
template <class GQ, class GK, class GV, class GG, class GB, class Gr, class Q, class K, class V, class G, class B,
          class M = Options>
requires(!detail::is_recurrent_state<Gr>) void gated_delta_rule_backward_into(
    GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate, GB&& grad_beta, const Gr& grad_out,
    const Q& query, const K& key, const V& value, const G& log_gate, const B& beta, const M& mods = {},
    const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  back.run(grad_query, grad_key, grad_value, grad_log_gate, grad_beta, detail::NoStates(), with.options);
}

/// The bytes that Options::workspace must have for the gradients of such calls: for each thread, one state in front of
/// each 64 causal tokens of the longest sequence, and some chunks.
template <class Q, class K, class V, class Map, class M = Options>
std::size_t linear_backward_workspace_bytes(const Q& query, const K& key, const V& value, const Map& map,
                                            const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), with.options));
}
/// The bytes for gated_attention_backward_into().
template <class Q, class K, class V, class G, class M = Options>
std::size_t gated_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, detail::NoGates(), with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), with.options));
}
/// The bytes for gated_delta_rule_backward_into().
template <class Q, class K, class V, class G, class B, class M = Options>
std::size_t delta_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), with.options));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
