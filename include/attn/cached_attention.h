// Attention over sequences of different lengths, whose keys and values are in a cache or in pages.
#pragma once

#include "attn/cache/bound_sequences.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Computes attention of queries over the keys and values in `cache`: a KvCache, sequences of a PagedKvCache, a layer
/// of KvCaches, or your own KvView. Each sequence has its own length; in one call, some may prefill while others
/// decode.
///
///     // q (batch, heads, q_len, head_dim): the same number of queries for each sequence
///     attn::attention(q, cache)
///     attn::attention(q, pages.view({a, b}), attn::causal())
///     // q (1, heads, 514, head_dim): 512 queries of the first sequence, one of each of the others
///     attn::attention(attn::ragged(q, {512, 1, 1}), cache, attn::causal())
///
/// Each sequence gets the result of attention() over its own keys and values; kv_len is its length. By default the
/// queries are the last tokens of the sequence, so append their keys first; Options::q_offset overrides this. If the
/// cache has a Rope, queries are rotated as they are read. Mods see the index of the sequence as Position::batch.
/// Tensors that mods hold must fit each sequence.
///
/// @returns out, shaped like the query but with v_dim columns, and lse, which is float if out is 16-bit; see
/// attention().
///
/// The result of a sequence does not depend on the other sequences, the number of threads or the location of its pages,
/// bit for bit. Masks that group tokens in calls over tensors (strided_sparse, fixed_sparse, dilated) do not group them
/// in calls over a cache; they only skip the tiles that they drop entirely. Memory: that of attention(), plus a few
/// dozen bytes of heap for one sequence, or 1.6 KiB per sequence for several. With a rope, also the cosines and sines
/// of the queries, q_len * rotary_dim values per sequence.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <class Query, detail::KvSource Cache, class M = Options>
auto attention(const Query& query, const Cache& cache, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  detail::CheckedSequences call(query, cache, with.mods, with.options);
  auto result = detail::Answer<typename decltype(call)::Q>::result(call.problem);
  detail::run_passes(call.passes(result.out, result.lse), with.options, with.options.workspace);
  return result;
}

/// Computes attention() over a cache into the caller's memory: `out` (batch, heads, q_len, v_dim), `lse` (batch, heads,
/// q_len); see attention_into() for tensors. With ragged queries, batch is 1 and q_len is the total number of queries.
template <class Out, class Lse, class Query, detail::KvSource Cache, class M = Options>
void attention_into(Out&& out, Lse&& lse, const Query& query, const Cache& cache, const M& mods = {},
                    const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  detail::CheckedSequences call(query, cache, with.mods, with.options, detail::Outputs::given);
  detail::run_passes(call.caller_passes(std::forward<Out>(out), std::forward<Lse>(lse)), with.options,
                     with.options.workspace);
}

/// Computes attention() over a cache into the caller's memory, without the log-sum-exp.
template <class Out, class Query, detail::KvSource Cache, class M = Options>
void attention_into(Out&& out, const Query& query, const Cache& cache, const M& mods = {},
                    const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  detail::CheckedSequences call(query, cache, with.mods, with.options, detail::Outputs::given);
  detail::check_resumes_without_lse(call.problem, with.options);
  detail::run_passes(call.caller_passes(std::forward<Out>(out)), with.options, with.options.workspace);
}

/// Describes how attention() would run over these sequences, without running it; see explain() for tensors.
template <class Query, detail::KvSource Cache, class M = Options>
Explanation explain(const Query& query, const Cache& cache, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  detail::CheckedSequences call(query, cache, with.mods, with.options, detail::Outputs::given);
  Explanation e;
  detail::explain_passes(call.passes(), with.options, e);
  return e;
}

/// Returns the size in bytes that Options::workspace must have for attention() over these sequences. The result depends
/// on their lengths.
template <class Query, detail::KvSource Cache, class M = Options>
std::size_t workspace_bytes(const Query& query, const Cache& cache, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  detail::CheckedSequences call(query, cache, with.mods, with.options, detail::Outputs::given);
  return static_cast<std::size_t>(detail::bytes_of_passes(call.passes(), with.options));
}

}  // namespace attn::inline ATTN_BUILT_FOR
