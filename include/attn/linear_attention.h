// Linear attention: feature maps instead of the softmax, so that time is linear in the length, not quadratic.
#pragma once

#include "attn/recurrent/checked_recurrence.h"
#include "attn/recurrent/naive_recurrence.h"
#include "attn/recurrent/recurrence.h"

namespace attn {

/// The result of a recurrent form of attention: `out`, shaped like the query but with v_dim columns.
template <class Out>
struct RecurrentResult {
  Out out;  ///< shaped like the query but with v_dim columns, in the query's storage order
};
/// Deduces the type of the output.
template <class Out>
RecurrentResult(Out) -> RecurrentResult<Out>;

namespace detail::inline ATTN_BUILT_FOR {

/// Runs a checked call.
template <class Out, class Call>
void recurrence_into(Out&& out, const Call& call) {
  recurrence(call.call(out), call.in.options);
}
/// Runs a checked call that continues from a state.
template <class Out, class Call, class T>
void recurrence_into(Out&& out, const Call& call, RecurrentState<T>& state) {
  if constexpr (check_state<Call, RecurrentState<T>>()) {
    RecurrenceCall<T> with_state = call.call(out);
    with_state.state = state_memory(state, with_state);
    check_apart(with_state.out, "out", state.sums(), "the state");
    check_apart(with_state.out, "out", state.normaliser(), "the state's normaliser");
    recurrence(with_state, call.in.options);
  }
}
/// Returns the result of a checked call, which may continue from a state.
template <class Call, class... State>
auto recurrent_result(const Call& call, State&... state) {
  auto out = call.in.out();
  recurrence_into(out, call, state...);
  return RecurrentResult{std::move(out)};
}
template <class Call>
auto naive_recurrent_result(const Call& call) {
  auto out = call.in.out();
  naive_recurrence(call.call(out), call.in.options.executor);
  return RecurrentResult{std::move(out)};
}
template <class Call>
std::size_t recurrent_workspace_bytes(const Call& call) {
  return static_cast<std::size_t>(recurrence_bytes(call.call_to({}), call.in.options));
}

}  // namespace detail::inline ATTN_BUILT_FOR

inline namespace ATTN_BUILT_FOR {

/// Computes linear attention (Katharopoulos et al. 2020, eq. 5 and 9 to 12):
///
///     out_i = sum over j of (f(query_i) * f(key_j)) value_j / sum over j of f(query_i) * f(key_j)
///
/// where j runs over all keys that query i may see, and f is the feature map: elu1(), relu(), identity(),
/// favor(features, seed), which approximates the softmax, or feature_map() with a lambda. Shapes, grouped heads and
/// scalar types are those of attention().
///
/// @param mods     causal(), key_lengths(), documents() (each document contiguous), and combinations of them with `|`.
/// Only these mods have a recurrent form; other mods do not compile. Positions and q_offset are as in attention().
/// @param options  q_offset(s), executor, workspace, isa; with favor(), also the scale of the softmax that it
/// approximates.
///
/// A query that sees no key gives 0, and so does one whose normaliser is 0, as with relu() if no feature is positive in
/// both query and key. The features of each query are first scaled by the power of two that brings the largest into
/// [1, 2), so that products with small keys do not underflow; the scale cancels in the quotient. With non-negative
/// features, each output is between the smallest and the largest value. NaN or inf in a key or value does not reach
/// queries that do not see it.
///
/// Cost: 2 * features * v_dim flops per query and per key; causal calls take 1.5 times that at head_dim 64, with chunks
/// of 64 tokens. Memory: a state (features, v_dim) and a few chunks per thread.
///
/// Heads of keys and values are distributed over threads. If kv_heads is less than 8, a sequence of more than 1,024
/// tokens is split into up to 32 segments. With at least 1.5 threads per head of the whole batch, the sums of segments
/// are computed in parallel, accumulated in order, and then read in parallel. Causal calls then compute the sums twice,
/// which is a third more work in total, and each segment takes memory for a state. The split depends on the sizes
/// alone, so results are bit-identical for any number of threads.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <detail::NoState Q, class K, class V, class Map, class M = Options>
auto linear_attention(const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                      const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedLinear(query, key, value, map, mods, options));
}

/// Not to be called: fails to compile, with a message that says to pass a feature map.
template <detail::NoState Q, class K, class V>
auto linear_attention(const Q&, const K&, const V&) {
  static_assert(sizeof(Q) == 0,
                "attn: pass a feature map after the value: linear_attention(q, k, v, attn::elu1(), attn::causal())");
}

/// Computes linear_attention() into the caller's memory: a matrix, block or map (q_len, v_dim), or a rank-4 tensor or
/// view. It must not overlap an input. Arguments are checked before anything is written.
template <class Out, detail::NoState Q, class K, class V, detail::FeatureMap Map, class M = Options>
void linear_attention_into(Out&& out, const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                           const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedLinear(query, key, value, map, mods, options));
}

/// Continues a sequence from a state: the tokens follow those that the state has seen, attend to them too, and are
/// added to the state. With causal(), a sequence may be passed in parts of any lengths, down to single tokens. With
/// key_lengths(), each sequence of the batch adds its own number of tokens.
/// @throws std::invalid_argument if sizes disagree with each other or with those of the state, which is then left
/// unchanged.
template <class T, class Q, class K, class V, class Map, class M = Options>
auto linear_attention(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const Map& map,
                      const M& mods = {}, const Options& options = {}) {
  return detail::recurrent_result(detail::CheckedLinear(query, key, value, map, mods, options), state);
}
/// Continues a sequence from a state, writing to the caller's memory.
template <class Out, class T, class Q, class K, class V, class Map, class M = Options>
void linear_attention_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                           const Map& map, const M& mods = {}, const Options& options = {}) {
  detail::recurrence_into(out, detail::CheckedLinear(query, key, value, map, mods, options), state);
}

/// Returns the size in bytes that Options::workspace must have for linear_attention_into() with these arguments, with
/// or without a state.
template <class Q, class K, class V, class Map, class M = Options>
std::size_t linear_workspace_bytes(const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                                   const Options& options = {}) {
  return detail::recurrent_workspace_bytes(detail::CheckedLinear(query, key, value, map, mods, options));
}

/// Computes linear_attention() by its definition, token by token in plain loops: the reference for tests and
/// benchmarks.
template <class Q, class K, class V, class Map, class M = Options>
auto naive_linear_attention(const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                            const Options& options = {}) {
  return detail::naive_recurrent_result(detail::CheckedLinear(query, key, value, map, mods, options));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
