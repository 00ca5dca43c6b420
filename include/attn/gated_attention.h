// Gated linear attention: causal linear attention with decay.
#pragma once

#include <cmath>

#include "attn/linear_attention.h"

namespace attn {

/// Returns a gate with the same decay at all tokens: log_decays (kv_heads), the logarithm of the decay of each head of
/// keys and values.
/// @throws std::invalid_argument if a logarithm is above 0 or NaN.
inline HeadDecays decay_per_head(Numbers log_decays) {
  for (const double decay : log_decays.values)
    detail::require(decay <= 0, "decay_per_head: log_decays must be at most 0, but one is ", decay);
  return {std::move(log_decays.values).to_vector()};
}

/// Returns the gate of RetNet, whose decays are 1 - 2^(-5 - h) for head h (Sun et al. 2023, section 2.2).
inline HeadDecays retention_decay(Index heads) {
  detail::require(heads > 0, "retention_decay: heads must be positive, but is ", heads);
  HeadDecays decays;
  for (Index h = 0; h < heads; ++h) decays.log_decays.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
  return decays;
}

inline namespace ATTN_BUILT_FOR {

/// Computes causal attention without a softmax, over a state that decays:
///
///     state_t = decay_t * state_(t - 1) + key_t * value_tᵀ,   decay_t = e^log_gate_t
///     out_t = scale * query_t * state_t
///
/// The gate is one of the following:
///
///     decay_per_head({…}), retention_decay(heads)         one per head: RetNet (Sun et al. 2023)
///     (batch, kv_heads, len), or (len) for matrices       one per token: Mamba-2 (Dao & Gu 2024, section 5, A_t)
///     (batch, kv_heads, len, head_dim), (len, head_dim)   one per feature of each token: GLA (Yang et al. 2024)
///
/// The gate belongs to the state, so there is one for each key and value head, which query heads may share as in
/// attention(). A gate is the logarithm of a decay, at most 0; -inf clears the state. The scalar type of gates is the
/// one that attention is computed in, float for 16-bit tensors. Each token has a query, a key and a gate. Outputs are
/// not normalised.
///
/// @param mods     key_lengths() and documents(), each document contiguous; causal() is implied, but accepted. Tokens
/// past a sequence's length are padding: their outputs are 0, their keys, values and gates are not read, and the state
/// does not change. Each document begins with a state of 0.
/// @param options  scale (default 1/sqrt(head_dim)), executor, workspace, isa.
///
/// Decays between tokens are exponentials of sums of gates. Gates are only added, never subtracted, so gates of any
/// strength neither overflow nor cancel. Cost: 6 head_dim * v_dim flops per token, plus, in chunks of 64, the products
/// of the chunk's tokens with each other. NaN affects no earlier token.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see linear_attention for shapes, scalars and memory; naive_gated_attention, the reference implementation.
template <detail::NoState Q, class K, class V, class G, class M = Options>
auto gated_attention(const Q& query, const K& key, const V& value, const G& log_gate, const M& mods = {},
                     const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}

/// Continues a sequence: these tokens follow those that the state has seen; see linear_attention().
template <class T, class Q, class K, class V, class G, class M = Options>
auto gated_attention(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const G& log_gate,
                     const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options),
                                  state);
}

/// Computes gated_attention() into the caller's memory; see linear_attention_into().
template <class Out, detail::NoState Q, class K, class V, class G, class M = Options>
void gated_attention_into(Out&& out, const Q& query, const K& key, const V& value, const G& log_gate,
                          const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}
/// Continues a sequence, writing to the caller's memory.
template <class Out, class T, class Q, class K, class V, class G, class M = Options>
void gated_attention_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                          const G& log_gate, const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options),
                          state);
}

/// Returns the size in bytes that Options::workspace must have for gated_attention(), with or without a state.
template <class Q, class K, class V, class G, class M = Options>
std::size_t gated_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate, const M& mods = {},
                                  const Options& options = {}) {
  return detail::recurrent_workspace_bytes(
      detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}

/// Computes gated_attention() by its definition, token by token in plain loops.
template <class Q, class K, class V, class G, class M = Options>
auto naive_gated_attention(const Q& query, const K& key, const V& value, const G& log_gate, const M& mods = {},
                           const Options& options = {}) {
  return detail::naive_recurrent_result(
      detail::CheckedGated(query, key, value, log_gate, detail::NoGates(), mods, options));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
