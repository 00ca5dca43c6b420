// The gated delta rule: linear attention in which a key overwrites its old value in the state.
#pragma once

#include "attn/gated_attention.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Computes the gated delta rule (Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", eq. 10; the state here is
/// (head_dim, v_dim), the transpose of theirs):
///
///     state_t = g_t * (I - beta_t * key_t * key_tᵀ) * state_(t - 1) + beta_t * key_t * value_tᵀ,   g_t = e^log_gate_t
///     out_t = scale * query_t * state_t
///
/// so that a key replaces its old value in the state rather than adding to it. With decay_per_head({0, …}) this is the
/// delta rule without gates (Schlag et al. 2021). The recurrence is stable only for |key|^2 * beta in 0 .. 2; usually
/// keys are normalised and beta is in 0 .. 1.
///
/// @param log_gate  one per token, (batch, kv_heads, len), or (len) for matrices; or decay_per_head().
/// @param beta      how strongly each token is written, (batch, kv_heads, len), or (len) for matrices.
/// @param mods      as in gated_attention().
/// @param options   scale (default 1/sqrt(head_dim)), executor, workspace, isa.
///
/// Chunks of 64 tokens are computed as matrix products (the WY representation; see
/// recurrent/chunk_work.h), a single token as one step of the recurrence; results agree up to rounding.
/// Cost: 6 head_dim * v_dim flops per token, plus 64 * (3 head_dim + 2 v_dim) in chunks. Each head runs on one thread:
/// the update of a token depends on the state, so a segment of a sequence cannot be computed before the segments that
/// precede it. NaN affects no earlier token.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see linear_attention for shapes, scalars and memory; naive_gated_delta_rule, the reference implementation.
template <class Q, class K, class V, class G, class B, class M = Options>
requires(!detail::is_recurrent_state<Q>) auto gated_delta_rule(const Q& query, const K& key, const V& value,
                                                               const G& log_gate, const B& beta, const M& mods = {},
                                                               const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  auto out = call.in.out();
  detail::recurrence(call.call(out), with.options);
  return RecurrentResult{std::move(out)};
}

/// Continues a sequence: these tokens follow those that the state has seen; see linear_attention().
template <class T, class Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const G& log_gate,
                      const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  auto out = call.in.out();
  detail::run_with_state(call, out, state, with.options);
  return RecurrentResult{std::move(out)};
}

/// Computes gated_delta_rule() into the caller's memory; see linear_attention_into().
template <class Out, class Q, class K, class V, class G, class B, class M = Options>
requires(!detail::is_recurrent_state<Q>) void gated_delta_rule_into(Out&& out, const Q& query, const K& key,
                                                                    const V& value, const G& log_gate, const B& beta,
                                                                    const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  detail::recurrence(call.call(out), with.options);
}
/// Continues a sequence, writing to the caller's memory.
template <class Out, class T, class Q, class K, class V, class G, class B, class M = Options>
void gated_delta_rule_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                           const G& log_gate, const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  detail::run_with_state(call, out, state, with.options);
}

/// Returns the size in bytes that Options::workspace must have for gated_delta_rule(), with or without a state.
template <class Q, class K, class V, class G, class B, class M = Options>
std::size_t delta_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                                  const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_bytes(call.call_to({}), with.options));
}

/// Computes gated_delta_rule() by its definition, token by token in plain loops.
template <class Q, class K, class V, class G, class B, class M = Options>
auto naive_gated_delta_rule(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                            const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  auto out = call.in.out();
  detail::naive_recurrence(call.call(out), with.options.executor);
  return RecurrentResult{std::move(out)};
}

}  // namespace attn::inline ATTN_BUILT_FOR
