// Linear attention: features in the place of the softmax, so that time grows with the length and not with its square.
#pragma once

#include "attn/detail/linear_attention/checked_recurrence.h"
#include "attn/detail/linear_attention/naive_recurrence.h"
#include "attn/detail/linear_attention/recurrence.h"
#ifdef ATTN_EXTERN_TEMPLATES  // see attn/instantiate.h
#include "attn/detail/extern_templates.h"
#endif

namespace attn {

/// What a recurrent form returns: `out`, like the query with v_dim columns.
template <class Out>
struct RecurrentResult {
  Out out;  ///< like the query with v_dim columns, in its storage order
};
/// Deduced from the output.
template <class Out>
RecurrentResult(Out) -> RecurrentResult<Out>;

namespace detail {
inline namespace ATTN_BUILT_FOR {

/// Runs a checked call with a state, which goes on from there.
template <class Call, class Out, class T>
void run_with_state(const Call& call, Out&& out, RecurrentState<T>& state, const Options& options) {
  if constexpr (check_state<Call, RecurrentState<T>>()) {
    RecurrenceCall<T> with_state = call.call(out);
    with_state.state = state_memory(state, with_state);
    check_apart(with_state.out, "out", state.sums(), "the state");
    check_apart(with_state.out, "out", state.normaliser(), "the state's sums of keys");
    recurrence(with_state, options);
  }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// Linear attention (Katharopoulos et al. 2020, eq. 5 and 9 to 12):
///
///     out_i = sum over j of (f(query_i) * f(key_j)) value_j / sum over j of f(query_i) * f(key_j)
///
/// where j runs over all keys that query i may see, and f is the feature map: elu1(), relu(), favor(features, seed),
/// which estimates the softmax, identity(), or feature_map() around a lambda. Shapes, grouped heads and scalars are
/// those of attention().
///
/// @param mods     causal(), key_lengths(), documents() (each in one piece) and `|` of them: those that have a
/// recurrent form. Positions and q_offset are as in attention(). Any other does not compile.
/// @param options  q_offset(s), executor, workspace, isa; with favor() scale, of the softmax that it estimates.
///
/// A query that sees no key gives 0, and so does one whose normaliser is 0, as with relu() where no feature is positive
/// in both. Features of each query are first multiplied by the power of two that brings the largest to 1 .. 2, which
/// the quotient takes out again: small ones do not vanish beside small keys. With features that are not negative, each
/// output lies between the smallest and the largest value. NaN or inf in a key or value that a query does not see does
/// not reach it.
///
/// Cost: 2 features * v_dim flops for each query and as many for each key; causal, 1.5 times that with chunks of 64
/// tokens at head_dim 64. Memory: a state (features, v_dim) and some chunks for each thread.
///
/// Heads of keys and values are shared out among threads. Where there are fewer than 8 of them, a text of more than
/// 1,024 tokens is cut into up to 32 segments. If threads are more by half than all heads, the sums of segments are
/// formed side by side, added up in order, and then read side by side. Causal calls form the sums twice for that, a
/// third more work in all; each segment takes memory for a state. The cut follows from the sizes, so results are the
/// same bits for any number of threads.
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
template <class Q, class K, class V, class Map, class M = Options>
requires(!detail::is_recurrent_state<Q>) auto linear_attention(const Q& query, const K& key, const V& value,
                                                               const Map& map, const M& mods = {},
                                                               const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  auto out = call.in.out();
  detail::recurrence(call.call(out), with.options);
  return RecurrentResult{std::move(out)};
}

/// linear_attention() into the caller's memory: a matrix, block or map (q_len, v_dim), or a rank-4 tensor or view. It
/// overlaps no input. Arguments are checked before anything is written.
template <class Out, class Q, class K, class V, class Map, class M = Options>
requires(!detail::is_recurrent_state<Q> &&
         detail::is_feature_map<Map>) void linear_attention_into(Out&& out, const Q& query, const K& key,
                                                                 const V& value, const Map& map, const M& mods = {},
                                                                 const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  detail::recurrence(call.call(out), with.options);
}

/// Goes on with a text: these tokens come after those that the state has seen, and see those as well. The state then
/// has seen these too. With causal(), a text may come in parts of any lengths, down to single tokens. With
/// key_lengths(), each sequence of the batch takes in its own number of them.
/// @throws std::invalid_argument if sizes disagree, also with those of the state, which is then as before.
template <class T, class Q, class K, class V, class Map, class M = Options>
auto linear_attention(RecurrentState<T>& state, const Q& query, const K& key, const V& value, const Map& map,
                      const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  auto out = call.in.out();
  detail::run_with_state(call, out, state, with.options);
  return RecurrentResult{std::move(out)};
}
/// Goes on with a text, into the caller's memory.
template <class Out, class T, class Q, class K, class V, class Map, class M = Options>
void linear_attention_into(Out&& out, RecurrentState<T>& state, const Q& query, const K& key, const V& value,
                           const Map& map, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  detail::run_with_state(call, out, state, with.options);
}

/// The bytes that Options::workspace must have for such a call, with a state or without.
template <class Q, class K, class V, class Map, class M = Options>
std::size_t linear_workspace_bytes(const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                                   const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  return static_cast<std::size_t>(detail::recurrence_bytes(call.call_to({}), with.options));
}

/// linear_attention() by its definition, token by token in plain loops: the reference for tests and the yardstick for
/// speed.
template <class Q, class K, class V, class Map, class M = Options>
auto naive_linear_attention(const Q& query, const K& key, const V& value, const Map& map, const M& mods = {},
                            const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedLinear call(query, key, value, map, with.mods, with.options);
  auto out = call.in.out();
  detail::naive_recurrence(call.call(out), with.options.executor);
  return RecurrentResult{std::move(out)};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
