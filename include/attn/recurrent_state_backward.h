// Gradients of recurrent forms that continue from a state: long sequences in parts, from the last part to the first.
#pragma once

#include "attn/recurrent_backward.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Returns the gradients of a call of linear_attention() with a state. Arguments are those of the call, and two states:
///
/// @param before      the state before the call: a copy, because the call changes its state.
/// @param grad_state  on entry, the gradient of the loss with respect to the state after the call; on return, the
/// gradient with respect to `before`. Pass a new RecurrentState, all 0, if the loss depends on the outputs alone.
///
/// The gradients of a sequence passed in parts are thus those of the whole sequence, with the memory of one part:
///
///     attn::RecurrentState<float> grad_state(state.config());
///     for (Index part = parts; part-- > 0;)   // before[part]: a copy of the state before this part
///       auto g = attn::linear_attention_backward(before[part], grad_state, grad_out[part], q[part], k[part], v[part],
///                                                attn::elu1(), attn::causal());
///
/// Stopping before part 0 truncates the gradients (Williams & Peng 1990, truncated backpropagation through time).
/// @throws std::invalid_argument if sizes disagree with each other or with those of the states, or if both states are
/// the same object.
/// @see linear_attention_backward() without states for everything else.
template <class T, class Gr, class Q, class K, class V, class Map, class M = Options>
auto linear_attention_backward(const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                               const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                               const Options& options = {}) {
  return detail::recurrent_gradients(grad_out, detail::CheckedLinear(query, key, value, map, mods, options),
                                     detail::StateGradient<T>{before, grad_state});
}
/// Computes linear_attention_backward() with a state into the caller's memory; see linear_attention_backward_into()
/// without states.
template <class GQ, class GK, class GV, class T, class Gr, class Q, class K, class V, class Map, class M = Options>
void linear_attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const RecurrentState<T>& before,
                                    RecurrentState<T>& grad_state, const Gr& grad_out, const Q& query, const K& key,
                                    const V& value, const Map& map, const M& mods = {}, const Options& options = {}) {
  detail::recurrent_gradients_into(grad_out, detail::CheckedLinear(query, key, value, map, mods, options),
                                   detail::StateGradient<T>{before, grad_state}, grad_query, grad_key, grad_value,
                                   detail::NoGates(), detail::NoGates());
}

/// Returns the gradients of a call of gated_attention() with a state; see linear_attention_backward() above.
template <class T, class Gr, class Q, class K, class V, class G, class M = Options>
auto gated_attention_backward(const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                              const Q& query, const K& key, const V& value, const G& log_gate, const M& mods = {},
                              const Options& options = {}) {
  return detail::recurrent_gradients(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options),
      detail::StateGradient<T>{before, grad_state});
}
/// Computes gated_attention_backward() with a state into the caller's memory.
template <class GQ, class GK, class GV, class GG, class T, class Gr, class Q, class K, class V, class G,
          class M = Options>
void gated_attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate,
                                   const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                                   const Q& query, const K& key, const V& value, const G& log_gate, const M& mods = {},
                                   const Options& options = {}) {
  detail::recurrent_gradients_into(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options),
      detail::StateGradient<T>{before, grad_state}, grad_query, grad_key, grad_value, grad_log_gate, detail::NoGates());
}

/// Returns the gradients of a call of gated_delta_rule() with a state; see linear_attention_backward() above.
template <class T, class Gr, class Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule_backward(const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                               const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                               const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(grad_out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options),
                                     detail::StateGradient<T>{before, grad_state});
}
/// Computes gated_delta_rule_backward() with a state into the caller's memory.
template <class GQ, class GK, class GV, class GG, class GB, class T, class Gr, class Q, class K, class V, class G,
          class B, class M = Options>
void gated_delta_rule_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GG&& grad_log_gate, GB&& grad_beta,
                                    const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                                    const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                                    const M& mods = {}, const Options& options = {}) {
  detail::recurrent_gradients_into(grad_out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options),
                                   detail::StateGradient<T>{before, grad_state}, grad_query, grad_key, grad_value,
                                   grad_log_gate, grad_beta);
}

/// Returns the gradients of a call of dplr_delta_rule() with a state; see linear_attention_backward() above.
template <class T, class Gr, class Q, class K, class V, class A, class B, class G, class M = Options>
auto dplr_delta_rule_backward(const RecurrentState<T>& before, RecurrentState<T>& grad_state, const Gr& grad_out,
                              const Q& query, const K& key, const V& value, const A& a, const B& b, const G& log_gate,
                              const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_gradients(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options),
      detail::StateGradient<T>{before, grad_state});
}
/// Computes dplr_delta_rule_backward() with a state into the caller's memory.
template <class GQ, class GK, class GV, class GA, class GB, class GG, class T, class Gr, class Q, class K, class V,
          class A, class B, class G, class M = Options>
void dplr_delta_rule_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, GA&& grad_a, GB&& grad_b,
                                   GG&& grad_log_gate, const RecurrentState<T>& before, RecurrentState<T>& grad_state,
                                   const Gr& grad_out, const Q& query, const K& key, const V& value, const A& a,
                                   const B& b, const G& log_gate, const M& mods = {}, const Options& options = {}) {
  detail::recurrent_gradients_into(
      grad_out, detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options),
      detail::StateGradient<T>{before, grad_state}, grad_query, grad_key, grad_value, grad_log_gate,
      detail::LowRank<GA&, GB&>{grad_a, grad_b});
}

}  // namespace attn::inline ATTN_BUILT_FOR
