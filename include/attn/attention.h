// Attention over matrices (one head) and rank-4 tensors (batch, heads, len, dim).
#pragma once

#include "attn/core/flash/checked_call.h"
#include "attn/core/flash/flash.h"
#include "attn/core/flash/refused_calls.h"
#include "attn/core/naive/naive.h"
#include "attn/mods/causal.h"  // most calls use it; other mods have their own headers

namespace attn::inline ATTN_BUILT_FOR {

/// Computes scaled dot-product attention:
///
///     out = softmax(mods(scale * query * keyᵀ)) * value          (softmax over each row; Vaswani et al. 2017, eq. 1)
///
/// Shapes for one head and for several; each row is a token:
///
///     query  (q_len, head_dim)       (batch, heads, q_len, head_dim)
///     key    (kv_len, head_dim)      (batch, kv_heads, kv_len, head_dim)
///     value  (kv_len, v_dim)         (batch, kv_heads, kv_len, v_dim)
///
/// A matrix is any Eigen matrix, map, block or expression, in either storage order; a rank-4 argument is an
/// attn::Tensor, attn::TensorView or Eigen tensor with any strides. If kv_heads < heads, neighbouring query heads share
/// a key and value head. Scalars are float, double, long double and 16-bit floats (Eigen::half, Eigen::bfloat16,
/// _Float16, __bf16, ARM's __fp16). 16-bit floats may be mixed with each other and with float; examples/README.md gives
/// their accuracy.
///
/// @param mods     changes to plain attention, e.g. `causal() | softcap(50)`. Scores are transformed from left to
/// right; masks intersect.
/// @param options  scale, q_offset, executor, workspace, …; see Options. Without mods, options may take their place, as
/// in all functions that take both: `attention(q, k, v, {.scale = 0.5})`.
/// @returns out, shaped like the query but with v_dim columns, and lse, (q_len) or (batch, heads, q_len), the natural
/// log-sum-exp of each row's final scores. lse is float if out is 16-bit, and empty with Normaliser::sigmoid(). If the
/// row count of an Eigen query and the column count of the value are fixed at compile time and their product is small,
/// out has a fixed size.
///
/// A query that keeps no key gives out = 0 and lse = -inf; if kv_len == 0, every query does. NaN or inf in a key or
/// value does not affect queries that drop it. Concurrent calls are safe.
///
/// Work: 2 * pairs * (head_dim + v_dim) flops for the pairs in visited tiles. Extra memory: O(tile * (head_dim +
/// v_dim)) per thread, never O(q_len * kv_len). Masks that group tokens add O(q_len) per head. If there are few queries
/// and many keys, the keys are split between threads (flash-decoding), and each of up to 64 splits stores its own
/// partial result. A call that needs at most 32 KiB (16 in WebAssembly) takes it from the stack and allocates nothing
/// but its result.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see naive_attention, the reference implementation; attention_into, which writes to the caller's memory.
template <class Q, class K, class V, class M = Options>
requires(!detail::KvSource<K>) auto attention(const Q& query, const K& key, const V& value, const M& mods = {},
                                              const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  auto result = detail::Answer<Q, V>::result(call.problem);
  call.flash_into(result, with.options);
  return result;
}

/// Computes attention() into the caller's memory: `out` is a matrix, block or map (q_len, v_dim), or a rank-4 tensor or
/// view (batch, heads, q_len, v_dim); `lse` is an Eigen vector (q_len), or a rank-3 tensor or view (batch, heads,
/// q_len). Neither may overlap an input: an output that begins or ends inside an input is refused, and vice versa.
/// Tensors that interleave without sharing elements, such as slices of one projection's output, are fine. No two
/// elements of an output may share memory. With options.accumulate the call continues from the contents of `out` and
/// `lse`.
///
/// A 16-bit `out` is rounded, and the lost digits are not kept. Backward passes then take longer, and those over parts
/// of the keys need them: see attention_backward_into(). An `lse` that is a Tensor also keeps its rounding errors where
/// |lse| >= 8, which allocates once; a view or an Eigen vector keeps none and allocates nothing.
///
/// Arguments are checked before anything is written; if a mod throws later, or memory for the rounding errors of lse
/// cannot be allocated, out and lse are partly written.
template <class Out, class Lse, class Q, class K, class V, class M = Options>
requires(detail::Viewable<V>) void attention_into(Out&& out, Lse&& lse, const Q& query, const K& key, const V& value,
                                                  const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  detail::flash(call.caller_tensors(std::forward<Out>(out), std::forward<Lse>(lse)), call.mods, with.options);
}

/// Computes attention() into the caller's memory without the log-sum-exp.
template <class Out, class Q, class K, class V, class M = Options>
requires(!detail::Viewable<M> && !detail::KvSource<K> &&
         !detail::KvSource<V>) void attention_into(Out&& out, const Q& query, const K& key, const V& value,
                                                   const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  detail::check_resumes_without_lse(call.problem, with.options);
  detail::flash(call.caller_tensors(std::forward<Out>(out)), call.mods, with.options);
}

/// Describes how attention() would run with these arguments, without running it: instruction set, tiles, threads,
/// memory, and how many tiles the masks skip. The result can be printed: `std::cout << attn::explain(q, k, v,
/// attn::causal());`
///
/// Arguments and errors are those of attention(). Cost: one evaluation of the masks' hints per tile; a mask without
/// hints is evaluated for every pair.
template <class Q, class K, class V, class M = Options>
requires(!detail::KvSource<K>) Explanation
    explain(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  return detail::flash_explanation(call.tensors(), call.mods, with.options);
}

/// Returns the size in bytes that Options::workspace must have for attention() with these arguments. The size is exact,
/// and linear in head_dim + v_dim and in the number of threads. strided_sparse() and fixed_sparse() may add one value
/// per query. If there are few queries and many keys, each of up to 64 splits of the keys adds a partial result. If
/// keys and values exceed the cache and the heads of a token are adjacent in memory, a thread processes single queries
/// of up to eight heads at a time and needs memory for each of these heads. The size depends on the sizes, strides and
/// scalar types of the arguments, on the options, and on mods that group tokens or list keys, such as strided_sparse()
/// and select(); also on weight mods; with row_invariant on sinks() and dropout(); and, if products are rounded to
/// bfloat16, on sinks() and Options::accumulate.
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

/// Computes attention by its definition: scores, softmax and weighted sum, with all scores in memory. It is the
/// reference for tests and the baseline for benchmarks.
///
/// Arguments, results and errors are those of attention(). The result also has `weights`, (q_len, kv_len) per head, by
/// which the values are multiplied. With the softmax, each row of weights sums to 1, or is 0 if no key is kept; but
/// sinks(), dropout() and weight mods are included and change the sum. Memory: O(batch * heads * q_len * kv_len).
template <class Q, class K, class V, class M = Options>
auto naive_attention(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  auto result = detail::Answer<Q, V>::naive_result(call.problem);
  call.naive(with.options.executor, detail::as_rank4(view(result.weights)), result.out, result.lse);
  return result;
}

/// Computes naive_attention() into the caller's memory, without returning the weights. Each worker holds the weights of
/// one head at a time, in O(q_len * kv_len) memory. Benchmarks compare with this function, because it spends no time on
/// unused weights.
template <class Out, class Q, class K, class V, class M = Options>
void naive_attention_into(Out&& out, const Q& query, const K& key, const V& value, const M& mods = {},
                          const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options);
  call.naive(with.options.executor, {}, std::forward<Out>(out));
}

}  // namespace attn::inline ATTN_BUILT_FOR
