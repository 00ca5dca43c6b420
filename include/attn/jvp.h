// Forward-mode differentiation of attention: the output and its derivative in a direction.
#pragma once

#include "attn/attention.h"
#include "attn/jvp/checked_jvp.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Computes attention() and its derivative in a direction of query, key and value (a Jacobian-vector product), in one
/// pass:
///
///     auto [out, tangent] = attn::attention_jvp(q, k, v, dq, dk, dv, mods, options);
///     // tangent = d/dh attention(q + h dq, k + h dk, v + h dv) at h = 0
///
/// With weights P and tangents of the scores Ẋ = slopes of the mods * scale * (dq kᵀ + q dkᵀ), the tangent is (P * (Ẋ -
/// sum P * Ẋ)) v + P dv; with sigmoids instead of the softmax it is (P * (1 - P) * Ẋ) v + P dv. Score lambdas are
/// called with dual numbers (see Dual), so they need no hand-written derivatives; tensors that mods hold are constant.
///
/// @param direction_query, direction_key, direction_value  shaped like query, key and value; zeros for an input that is
/// constant.
/// @returns out and tangent, each as attention() returns out.
///
/// A query that keeps no key has tangent 0; dropped pairs contribute nothing, even if they hold NaN. Results are
/// bit-identical for any number of threads. Cost: six products, where attention() has two. Extra memory: O(tile *
/// (head_dim + v_dim)) per thread, never O(q_len * kv_len); it is always allocated, and Options::workspace is not used.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <class Q, class K, class V, class DQ, class DK, class DV, class M = Options>
auto attention_jvp(const Q& query, const K& key, const V& value, const DQ& direction_query, const DK& direction_key,
                   const DV& direction_value, const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedJvp call(query, key, value, direction_query, direction_key, direction_value, with.mods,
                                with.options);
  auto result = call.result();
  call.run(result.out, result.tangent, with.options);
  return result;
}

/// Computes attention_jvp() by its definition, with all weights in memory. It is the reference for tests. Memory:
/// O(q_len * kv_len) per thread.
template <class Q, class K, class V, class DQ, class DK, class DV, class M = Options>
auto naive_attention_jvp(const Q& query, const K& key, const V& value, const DQ& direction_query,
                         const DK& direction_key, const DV& direction_value, const M& mods = {},
                         const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedJvp call(query, key, value, direction_query, direction_key, direction_value, with.mods,
                                with.options);
  auto result = call.result();
  call.naive(result.out, result.tangent, with.options.executor);
  return result;
}

}  // namespace attn::inline ATTN_BUILT_FOR
