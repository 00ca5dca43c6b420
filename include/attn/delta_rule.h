// Delta rules: linear attention in which tokens also change what the state holds already.
#pragma once

#include "attn/gated_attention.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Computes the gated delta rule (Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", eq. 10; the state here is
/// (head_dim, v_dim), the transpose of theirs):
///
///     state_t = (I - beta_t * key_t * key_tᵀ) * g_t * state_(t - 1) + beta_t * key_t * value_tᵀ,   g_t = e^log_gate_t
///     out_t = scale * query_t * state_t
///
/// so that a key replaces its old value in the state rather than adding to it. With a gate per feature, g_t is a
/// diagonal matrix: Kimi delta attention, KDA (Kimi Team 2025, "Kimi Linear"). With decay_per_head({0, …}) this is the
/// delta rule without gates (Schlag et al. 2021). The recurrence is stable only for |key|^2 * beta in 0 .. 2; usually
/// keys are normalised and beta is in 0 .. 1.
///
/// @param log_gate  as in gated_attention(): per head, token, or feature of each token.
/// @param beta      how strongly each token is written, (batch, kv_heads, len), or (len) for matrices.
/// @param mods      as in gated_attention().
/// @param options   scale (default 1/sqrt(head_dim)), executor, workspace, isa.
///
/// Chunks of 64 tokens are computed as matrix products (the WY representation; see
/// ChunkWork::compute_written()), a single token as one step of the recurrence; results agree up to rounding.
/// Cost: 6 head_dim * v_dim flops per token, plus 64 * (3 head_dim + 2 v_dim) in chunks. Each head runs on one thread:
/// the update of a token depends on the state, so a segment of a sequence cannot be computed before the segments that
/// precede it. NaN affects no earlier token.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see linear_attention for shapes, scalars and memory; naive_gated_delta_rule, the reference implementation.
template <detail::NoState Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                      const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}

/// Continues a sequence: these tokens follow those that the state has seen; see linear_attention().
template <class T, class Q, class K, class V, class G, class B, class M = Options>
auto gated_delta_rule(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const G& log_gate,
                      const B& beta, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedGated(query, key, value, log_gate, beta, mods, options), state);
}

/// Computes gated_delta_rule() into the caller's memory; see linear_attention_into().
template <class Out, detail::NoState Q, class K, class V, class G, class B, class M = Options>
void gated_delta_rule_into(Out&& out, const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                           const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}
/// Continues a sequence, writing to the caller's memory.
template <class Out, class T, class Q, class K, class V, class G, class B, class M = Options>
void gated_delta_rule_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                           const G& log_gate, const B& beta, const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedGated(query, key, value, log_gate, beta, mods, options), state);
}

/// Returns the size in bytes that Options::workspace must have for gated_delta_rule(), with or without a state.
template <class Q, class K, class V, class G, class B, class M = Options>
std::size_t delta_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                                  const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_workspace_bytes(detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}

/// Computes gated_delta_rule() by its definition, token by token in plain loops.
template <class Q, class K, class V, class G, class B, class M = Options>
auto naive_gated_delta_rule(const Q& query, const K& key, const V& value, const G& log_gate, const B& beta,
                            const M& mods = {}, const Options& options = {}) {
  return detail::naive_recurrent_result(detail::CheckedGated(query, key, value, log_gate, beta, mods, options));
}

/// Computes the delta rule whose transition is diagonal plus low rank (DPLR), for any vectors a and b:
///
///     state_t = diag(e^log_gate_t) * state_(t - 1) + b_t * (a_tᵀ * state_(t - 1)) + key_t * value_tᵀ
///     out_t = scale * query_t * state_t
///
/// In RWKV-7 (Peng et al. 2025), a is the negated and normalised removal key, and b the removal key times the
/// in-context learning rate; GDN-2 erases along other vectors than it writes. gated_delta_rule() is the special case a
/// = e^log_gate * k, b = -beta * k, key = beta * k, and faster.
///
/// @param a         reads the state, (batch, kv_heads, len, head_dim), shaped like the key.
/// @param b         receives what `a` has read, shaped like the key.
/// @param log_gate  as in gated_attention(): per head, token, or feature of each token.
/// @param mods      as in gated_attention().
/// @param options   scale (default 1/sqrt(head_dim)), executor, workspace, isa.
///
/// Cost: 8 head_dim * v_dim flops per token, plus 64 * (5 head_dim + 4 v_dim) in chunks. NaN affects no earlier token.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see gated_delta_rule for chunks and threads; naive_dplr_delta_rule, the reference implementation.
template <detail::NoState Q, class K, class V, class A, class B, class G, class M = Options>
auto dplr_delta_rule(const Q& query, const K& key, const V& value, const A& a, const B& b, const G& log_gate,
                     const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(
      detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}
/// Continues a sequence: these tokens follow those that the state has seen; see linear_attention().
template <class T, class Q, class K, class V, class A, class B, class G, class M = Options>
auto dplr_delta_rule(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const A& a, const B& b,
                     const G& log_gate, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(
      detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options), state);
}

/// Computes dplr_delta_rule() into the caller's memory; see linear_attention_into().
template <class Out, detail::NoState Q, class K, class V, class A, class B, class G, class M = Options>
void dplr_delta_rule_into(Out&& out, const Q& query, const K& key, const V& value, const A& a, const B& b,
                          const G& log_gate, const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out,
                          detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}
/// Continues a sequence, writing to the caller's memory.
template <class Out, class T, class Q, class K, class V, class A, class B, class G, class M = Options>
void dplr_delta_rule_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value, const A& a,
                          const B& b, const G& log_gate, const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options),
                          state);
}

/// Returns the size in bytes that Options::workspace must have for dplr_delta_rule(), with or without a state.
template <class Q, class K, class V, class A, class B, class G, class M = Options>
std::size_t dplr_workspace_bytes(const Q& query, const K& key, const V& value, const A& a, const B& b,
                                 const G& log_gate, const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_workspace_bytes(
      detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}

/// Computes dplr_delta_rule() by its definition, token by token in plain loops.
template <class Q, class K, class V, class A, class B, class G, class M = Options>
auto naive_dplr_delta_rule(const Q& query, const K& key, const V& value, const A& a, const B& b, const G& log_gate,
                           const M& mods = {}, const Options& options = {}) {
  return detail::naive_recurrent_result(
      detail::CheckedGated(query, key, value, log_gate, detail::low_rank(a, b), mods, options));
}

}  // namespace attn::inline ATTN_BUILT_FOR
