// Gradients of linear attention, its gated forms and the delta rules.
#pragma once

#include <utility>

#include "attn/delta_rule.h"
#include "attn/recurrent/checked_recurrent_backward.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Returns the gradients of a loss with respect to query, key and value of linear_attention(), given the gradient with
/// respect to its output. The arguments are those of the forward call, whose result is not needed. Lambdas are
/// differentiated with dual numbers (see Dual); the random vectors of favor() are constants.
///
/// @param grad_out  shaped like out.
/// @returns tensors .query, .key and .value, shaped like query, key and value.
///
/// Gradients of heads that share keys are summed. Keys and values that no query sees get gradient 0, and so does a
/// query that sees nothing, or whose normaliser is 0. Results are bit-identical for any number of threads. Cost: four
/// to seven times the forward call. Memory: in causal calls, each thread recomputes one state (features, v_dim) per 64
/// tokens in a first pass and stores it, so memory grows with the length.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <detail::NoState Gr, class Q, class K, class V, class Map, class M = Options>
auto linear_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const Map& map,
                               const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(grad_out, detail::CheckedLinear(query, key, value, map, mods, options));
}

/// Computes linear_attention_backward() into the caller's memory, which is overwritten: matrices, or rank-4 tensors or
/// views, shaped like query, key and value. None may overlap an input or another gradient. With options.workspace,
/// allocations do not grow with the sizes. Arguments are checked before anything is written.
template <class GQ, class GK, class GV, detail::NoState Gr, class Q, class K, class V, detail::FeatureMap Map,
          class M = Options>
void linear_attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const Gr& grad_out, const Q& query,
                                    const K& key, const V& value, const Map& map, const M& mods = {},
                                    const Options& options = {}) {
  detail::recurrent_gradients_into(grad_out, detail::CheckedLinear(query, key, value, map, mods, options),
                                   detail::NoStates(), grad_query, grad_key, grad_value, detail::NoGates(),
                                   detail::NoGates());
}

/// Returns the gradients of gated_attention(): those of linear_attention(), and .log_gate, shaped like the gate.
template <detail::NoState Gr, class Q, class K, class V, class G, class M = Options>
auto gated_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                              const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}
/// Computes gated_attention_backward() into the caller's memory; see linear_attention_backward_into(). The gradient of
/// the gate is shaped like the gate; for decay_per_head() it is a tensor (kv_heads) of sums over tokens. The call
/// allocates memory for the terms of these sums.
template <class GQ, class GK, class GV, class GG, detail::NoState Gr, class Q, class K, class V, class G,
          class M = Options>
void gated_attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate,
                                   const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                                   const M& mods = {}, const Options& options = {}) {
  detail::recurrent_gradients_into(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options), detail::NoStates(),
      grad_query, grad_key, grad_value, grad_log_gate, detail::NoGates());
}

/// Returns the gradients of gated_delta_rule(): those of gated_attention(), and .beta, shaped like beta.
template <detail::NoState Gr, class Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                               const B& beta, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(grad_out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}
/// Computes gated_delta_rule_backward() into the caller's memory; see gated_attention_backward_into().
template <class GQ, class GK, class GV, class GG, class GB, detail::NoState Gr, class Q, class K, class V, class G,
          class B, class M = Options>
void gated_delta_rule_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate, GB&& grad_beta,
                                    const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                                    const B& beta, const M& mods = {}, const Options& options = {}) {
  detail::recurrent_gradients_into(grad_out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options),
                                   detail::NoStates(), grad_query, grad_key, grad_value, grad_log_gate, grad_beta);
}

/// Returns the gradients of dplr_delta_rule(): those of gated_attention(), and .a and .b, shaped like a and b.
template <detail::NoState Gr, class Q, class K, class V, class A, class B, class G, class M = Options>
auto dplr_delta_rule_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const A& a, const B& b,
                              const G& log_gate, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}
/// Computes dplr_delta_rule_backward() into the caller's memory; see gated_attention_backward_into().
template <class GQ, class GK, class GV, class GA, class GB, class GG, detail::NoState Gr, class Q, class K, class V,
          class A, class B, class G, class M = Options>
void dplr_delta_rule_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GA&& grad_a, GB&& grad_b,
                                   GG&& grad_log_gate, const Gr& grad_out, const Q& query, const K& key, const V& value,
                                   const A& a, const B& b, const G& log_gate, const M& mods = {},
                                   const Options& options = {}) {
  detail::recurrent_gradients_into(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options),
      detail::NoStates(), grad_query, grad_key, grad_value, grad_log_gate, detail::LowRank<GA&, GB&>{grad_a, grad_b});
}

/// Returns the size in bytes that Options::workspace must have for linear_attention_backward_into(): per thread, a few
/// chunks and, in causal calls, one state for every 64 tokens of the longest sequence.
template <class Q, class K, class V, class Map, class M = Options>
std::size_t linear_backward_workspace_bytes(const Q& query, const K& key, const V& value, const Map& map,
                                            const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_backward_workspace_bytes(detail::CheckedLinear(query, key, value, map, mods, options));
}
/// Returns the size in bytes that Options::workspace must have for gated_attention_backward_into().
template <class Q, class K, class V, class G, class M = Options>
std::size_t gated_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_backward_workspace_bytes(
      detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}
/// Returns the size in bytes that Options::workspace must have for gated_delta_rule_backward_into().
template <class Q, class K, class V, class G, class B, class M = Options>
std::size_t delta_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const B& beta, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_backward_workspace_bytes(
      detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}

/// Returns the size in bytes that Options::workspace must have for dplr_delta_rule_backward_into().
template <class Q, class K, class V, class A, class B, class G, class M = Options>
std::size_t dplr_backward_workspace_bytes(const Q& query, const K& key, const V& value, const A& a, const B& b,
                                          const G& log_gate, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_backward_workspace_bytes(
      detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}

}  // namespace attn::inline ATTN_BUILT_FOR
