// The gated delta rule: a state in which keys replace what was there.
#pragma once

#include "attn/gated_attention.h"

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// The gated delta rule (Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", eq. 10; here the state is (head_dim,
/// v_dim), theirs transposed):
///
///     state_t = g_t * (I - beta_t * key_t * key_tᵀ) * state_(t - 1) + beta_t * key_t * value_tᵀ,   g_t = e^log_gate_t
///     out_t = scale * query_t * state_t
///
/// so that a key replaces what the state had for it, rather than adding to it. With decay_per_head({0, …}) it is the
/// delta rule without gates (Schlag et al. 2021). For it to be stable, |key|^2 * beta must lie in 0 .. 2: keys are
/// usually normalised and beta lies in 0 .. 1.
///
/// @param log_gate  one for each token, (batch, kv_heads, len), or (len) for matrices; or decay_per_head().
/// @param beta      likewise, how much of the new is written: (batch, kv_heads, len), or (len) for matrices.
/// @param mods      as in gated_attention().
/// @param options   scale (default 1/sqrt(head_dim)), executor, workspace, isa.
///
/// Chunks of 64 tokens are computed as matrices (the WY representation; see detail/linear_attention/chunk_work.h),
/// one token alone as a step; both give the same but for rounding. Cost: 6 head_dim * v_dim flops for each token, and
/// in chunks 64 * (3 head_dim + 2 v_dim) more. One head runs on one thread: what a token writes depends on the state,
/// so that segments of a text cannot be worked on before those in front of them. NaN reaches no earlier token.
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
/// @see linear_attention for shapes, scalars and memory; naive_gated_delta_rule, the definition.
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

/// Goes on with a text: these tokens come after those that the state has seen; see linear_attention().
template <class T, class Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const G& log_gate,
                      const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  auto out = call.in.out();
  detail::run_with_state(call, out, state, with.options);
  return RecurrentResult{std::move(out)};
}

/// gated_delta_rule() into the caller's memory; see linear_attention_into().
template <class Out, class Q, class K, class V, class G, class B, class M = Options>
requires(!detail::is_recurrent_state<Q>) void gated_delta_rule_into(Out&& out, const Q& query, const K& key,
                                                                    const V& value, const G& log_gate, const B& beta,
                                                                    const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  detail::recurrence(call.call(out), with.options);
}
/// Goes on with a text, into the caller's memory.
template <class Out, class T, class Q, class K, class V, class G, class B, class M = Options>
void gated_delta_rule_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                           const G& log_gate, const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  detail::run_with_state(call, out, state, with.options);
}

/// The bytes that Options::workspace must have for such a call, with a state or without.
template <class Q, class K, class V, class G, class B, class M = Options>
std::size_t delta_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                                  const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_bytes(call.call_to({}), with.options));
}

/// gated_delta_rule() by its definition, token by token in plain loops.
template <class Q, class K, class V, class G, class B, class M = Options>
auto naive_gated_delta_rule(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                            const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedGated call(query, key, value, log_gate, beta, with.mods, with.options);
  auto out = call.in.out();
  detail::naive_recurrence(call.call(out), with.options.executor);
  return RecurrentResult{std::move(out)};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
