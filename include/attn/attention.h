// The entry points, for matrices (one head) and for rank-4 tensors (batch, heads, len, dim).
#pragma once

#include "attn/detail/flash/checked_call.h"
#include "attn/detail/flash/flash.h"
#include "attn/detail/flash/refused_calls.h"
#include "attn/detail/mods/refused_operators.h"
#include "attn/detail/naive/naive.h"
#include "attn/mods/causal.h"  // the mask of most calls; other mods have headers of their own
#ifdef ATTN_EXTERN_TEMPLATES   // see attn/instantiate.h
#include "attn/detail/extern_templates.h"
#endif

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// Scaled dot-product attention:
///
///     out = softmax(mods(scale * query * keyᵀ)) * value          (softmax over each row; Vaswani et al. 2017, eq. 1)
///
/// Shapes for one head and for many; a row is a token:
///
///     query  (q_len, head_dim)       (batch, heads, q_len, head_dim)
///     key    (kv_len, head_dim)      (batch, kv_heads, kv_len, head_dim)
///     value  (kv_len, v_dim)         (batch, kv_heads, kv_len, v_dim)
///
/// Matrices are any Eigen matrix, map, block or expression, in either storage order; rank-4 arguments are attn::Tensor,
/// attn::TensorView or Eigen's tensors, with any strides. With kv_heads < heads, neighbouring query heads share a key
/// and value head. Scalars are float, double, long double, and floats of 16 bits (Eigen::half, Eigen::bfloat16,
/// _Float16, __bf16, ARM's __fp16). Floats of 16 bits may be mixed with each other and with float; examples/README.md
/// says how accurate they are.
///
/// @param mods     what differs from plain attention, e.g. `causal() | softcap(50)`. Scores are transformed left to
/// right, masks intersect.
/// @param options  scale, q_offset, executor, workspace; see Options. Without mods they stand in their place, as in all
/// functions that take both: `attention(q, k, v, {.scale = 0.5})`.
/// @returns out, like the query with v_dim columns; lse (q_len) or (batch, heads, q_len), the natural log-sum-exp of
/// each row's final scores, in float where out has 16 bits; empty where Normaliser makes sigmoids of the scores. Where
/// the rows of an Eigen query and the columns of the value are fixed, and their product is small, out has fixed size.
///
/// A query that keeps no key gives out = 0 and lse = -inf; so does kv_len == 0. NaN or inf in a dropped key or value
/// reaches no query that drops it. Concurrent calls are safe.
///
/// Work: 2 * pairs * (head_dim + v_dim) flops for the pairs in visited tiles. Extra memory: O(tile * (head_dim +
/// v_dim)) per thread, never O(q_len * kv_len). Masks that group tokens add O(q_len) per head. Where few queries have
/// many keys, the keys are split between threads, and each of up to 64 splits has a result of its own. A call that
/// needs no more than 32 KiB takes it from the stack, and allocates nothing except its result.
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
/// @see naive_attention, the definition this is tested against; attention_into, for memory of your own.
template <class Q, class K, class V, class M = Options>
requires(!detail::KvSource<K>) auto attention(const Q& query, const K& key, const V& value, const M& mods = {},
                                              const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  auto result = detail::Answer<Q, V>::result(call.problem);
  call.flash_into(result, with.options);
  return result;
}

/// attention() into the caller's memory: `out` is a matrix, block or map (q_len, v_dim), or a rank-4 tensor or view
/// (batch, heads, q_len, v_dim); `lse` is an Eigen vector (q_len), or a rank-3 tensor or view (batch, heads, q_len).
/// Neither may overlap an input: an output that begins or ends inside an input is refused, as is the reverse. Tensors
/// that lie between each other, as query, key and value of one projection do, are fine. No two elements of an output
/// may share memory. With options.accumulate the call goes on from what stands in `out` and `lse`.
///
/// An `out` of 16 bits is rounded, and nothing is kept beside it: gradients need more digits, so give a float `out`
/// where attention_backward_into() follows. An `lse` that is a Tensor keeps what rounding takes from it where
/// |lse| >= 8, which takes memory once; a view or an Eigen vector keeps nothing, and no memory is taken.
///
/// Arguments are checked before anything is written; if a mod throws later, or there is no memory for what an lse
/// keeps, out and lse are partly written.
template <class Out, class Lse, class Q, class K, class V, class M = Options>
requires(detail::Viewable<V>) void attention_into(Out&& out, Lse&& lse, const Q& query, const K& key, const V& value,
                                                  const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  detail::flash(call.caller_tensors(std::forward<Out>(out), std::forward<Lse>(lse)), call.mods, with.options);
}

/// attention_into() without the log-sum-exp.
template <class Out, class Q, class K, class V, class M = Options>
requires(!detail::Viewable<M> && !detail::KvSource<K> &&
         !detail::KvSource<V>) void attention_into(Out&& out, const Q& query, const K& key, const V& value,
                                                   const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  detail::check_goes_on_without_lse(call.problem, with.options);
  detail::flash(call.caller_tensors(std::forward<Out>(out)), call.mods, with.options);
}

/// Says what attention() would do with these arguments, without doing it: instruction set, tiles, threads, memory, and
/// how many tiles the masks skip. The result prints: `std::cout << attn::explain(q, k, v, attn::causal());`
///
/// Arguments and errors as for attention(). Cost: the hints of the masks, once for each tile; a mask without hints is
/// asked about every pair.
template <class Q, class K, class V, class M = Options>
requires(!detail::KvSource<K>) Explanation
    explain(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  return detail::flash_explanation(call.tensors(), call.mods, with.options);
}

/// The bytes that Options::workspace must have for attention() with these arguments. The number is exact. It is linear
/// in head_dim + v_dim and in the number of threads; strided_sparse() and fixed_sparse() may add a number for each
/// query, up to 64 splits of the keys add a result each where few queries have many keys, and a thread works on up to
/// eight heads of single queries at a time where the heads of a token lie side by side in far memory. It depends on
/// sizes, strides, scalar types, executor, instruction set and those two masks, and on no other mod.
///
///     std::vector<std::byte> memory(attn::workspace_bytes(q, k, v, mods, options));
///     options.workspace = memory;
///     attn::attention_into(out, q, k, v, mods, options);  // allocates nothing
template <class Q, class K, class V, class M = Options>
requires(!detail::KvSource<K>) std::size_t
    workspace_bytes(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  return static_cast<std::size_t>(detail::flash_workspace_bytes(call.tensors(), call.mods, with.options));
}

/// Attention by its definition, as three nested passes over scores that are all in memory. It is the reference for
/// tests and the yardstick for speed.
///
/// Arguments, results and errors as for attention(), and `weights`: (q_len, kv_len) for each head, those that values
/// are multiplied by. Rows sum to 1, or are 0 where no key is kept; sinks() and dropout(), which weights include,
/// change the sum. Memory O(batch * heads * q_len * kv_len).
template <class Q, class K, class V, class M = Options>
auto naive_attention(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  auto result = detail::Answer<Q, V>::naive_result(call.problem);
  call.naive(with.options.executor, detail::as_rank4(view(result.weights)), result.out, result.lse);
  return result;
}

/// naive_attention() into the caller's memory, without returning the weights: each worker keeps the weights of one head
/// at a time. Memory O(q_len * kv_len) per worker. Benchmarks compare with this one, because it spends no time on
/// weights that nobody asked for.
template <class Out, class Q, class K, class V, class M = Options>
void naive_attention_into(Out&& out, const Q& query, const K& key, const V& value, const M& mods = {},
                          const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  call.naive(with.options.executor, {}, std::forward<Out>(out));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
