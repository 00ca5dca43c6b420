// Gradients of attention with respect to queries, keys and values.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/attention.h"
#include "attn/core/backward/checked_backward.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Returns the gradients of a loss with respect to query, key and value, given the gradient with respect to the output:
///
///     auto r = attn::attention(q, k, v, mods, options);
///     auto g = attn::attention_backward(grad_out, q, k, v, r, mods, options);   // g.query, g.key, g.value
///
/// The results are the exact gradients of attention(). With weights P and dP = grad_out * valueᵀ, the modded scores
/// have the gradient dX = P * (dP - sum P * dP), and the mods' derivatives turn dX into dS. Then grad_value = Pᵀ *
/// grad_out, grad_query = scale * dS * key and grad_key = scale * dSᵀ * query (Dao et al. 2022, appendix B). Score
/// lambdas are called with dual numbers (see Dual), so they need no hand-written derivatives.
///
/// @param grad_out  shaped like out; or {grad_out, grad_lse} as a Result, if the loss also depends on lse.
/// @param result    what attention() returned for the same query, key, value, mods and options.
/// @returns tensors shaped like query, key and value, in the scalar type and storage order of each.
///
/// Gradients of heads that share keys are summed. A query that keeps no key has gradient 0 and contributes to no other
/// gradient; dropped pairs contribute nothing, even if they hold NaN. Results are bit-identical for any number of
/// threads. The gradients of a batch element do not depend on other batch elements, except that these can decide
/// whether products are computed in bf16.
///
/// Cost: five products, where attention() has two, because scores are recomputed tile by tile; seven if the forward
/// pass used kernels for bf16 or for few queries, or if a mask groups tokens, because the weights of these passes
/// differ in their last bits from those that this pass recomputes, and the sums over keys must be those of the latter.
/// Products are computed in bf16, by the matrix unit or by AVX512-BF16, if query, key, value and grad_out are bf16 (for
/// the matrix unit, also if Options::compute allows rounding them) and no row has a norm of 2^30 or more. Weights and
/// gradients of scores are then rounded to bf16, and sums are float. A single row with a larger norm makes the whole
/// call run in float, including all other batch elements. Keys that select() lists for each query are gathered, at a
/// cost proportional to the length of the lists. Extra memory: O(len * (head_dim + v_dim)) for the heads processed
/// together; see backward_workspace_bytes().
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
template <class G, class Q, class K, class V, class R, class M = Options>
auto attention_backward(const G& grad_out, const Q& query, const K& key, const V& value, const R& result,
                        const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  if constexpr (detail::check_result<R>()) {
    const detail::CheckedBackward call(grad_out, query, key, value, result.out, result.lse, with.mods, with.options);
    auto grads = call.gradients();
    call.run(grads.query, grads.key, grads.value, with.options);
    return grads;
  }
}
/// Not to be called: fails to compile, with a message that lists the arguments.
template <class G, class Q, class K, class V>
auto attention_backward(const G&, const Q&, const K&, const V&) {
  static_assert(sizeof(G) == 0,
                "attn: pass the gradient of out, and the result of attention(): attention_backward(grad_out, q, k, v, "
                "result)");
}
/// Not to be called: fails to compile, with the message of detail::check_result() or detail::check_order().
template <class G, class Q, class K, detail::Viewable V, class R, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention_backward(const G&, const Q&, const K&, const V&, const R&,
                                                                   const M&, const Wrong&, const More&...) {
  if constexpr (detail::check_result<R>()) detail::check_order<M, Wrong, More...>();
}

/// Computes attention_backward() into the caller's memory, which is overwritten, or added to with options.accumulate.
/// The gradients are matrices, or rank-4 tensors or views, shaped like query, key and value. A gradient that overlaps
/// an input or another gradient is refused, as by attention_into(). With options.workspace, the call allocates only in
/// the cases that Options::workspace lists and in one more: a call with select() allocates a table of the queries that
/// list each key. Without a kv_offset, only the first call with a given select() does so.
///
/// `out` and `lse` are those of a Result; the Result itself may take their place:
///
///     attention_backward_into(grad_q, grad_k, grad_v, grad_out, q, k, v, r, mods, options);
///
/// The gradients of a row need more digits of out than a 16-bit tensor holds. If lse is large, e.g. near -1e9, they
/// need more digits of lse than a float holds. A Result carries these digits (see Result). If attention_into() writes
/// to your own memory, use a Tensor for `lse`, and with 16-bit queries a float `out`: with a 16-bit `out`, the pass
/// takes seven products instead of five. With a 16-bit `out` and a kv_offset or accumulate, gradients are wrong by the
/// rounding error of `out` times the common component of the keys, because a part of the keys does not determine the
/// sums.
///
/// Arguments are checked before anything is written; if a mod throws later, the gradients are partly written.
template <class GQ, class GK, class GV, class G, class Q, class K, class V, class Out, class Lse, class M = Options>
requires(detail::Viewable<Lse>) void attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value,
                                                             const G& grad_out, const Q& query, const K& key,
                                                             const V& value, const Out& out, const Lse& lse,
                                                             const M& mods = {}, const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedBackward call(grad_out, query, key, value, out, lse, with.mods, with.options,
                                     detail::Outputs::given);
  call.run_into(std::forward<GQ>(grad_query), std::forward<GK>(grad_key), std::forward<GV>(grad_value), with.options);
}
/// As above, with a Result in place of out and lse.
template <class GQ, class GK, class GV, class G, class Q, class K, class V, detail::WholeResult R, class M = Options>
requires(!detail::Viewable<M>) void attention_backward_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value,
                                                            const G& grad_out, const Q& query, const K& key,
                                                            const V& value, const R& result, const M& mods = {},
                                                            const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  attention_backward_into(grad_query, grad_key, grad_value, grad_out, query, key, value, result.out, result.lse,
                          with.mods, with.options);
}

/// Not to be called: fails to compile, with the message of detail::check_result().
template <class GQ, class GK, class GV, class G, class Q, class K, class V, class... Given>
requires(!detail::begins_with_result<Given...>) void attention_backward_into(GQ&&, GK&&, GV&&, const G&, const Q&,
                                                                             const K&, const V&, const Given&...) {
  detail::check_result<G>();
}

/// Returns the size in bytes that Options::workspace must have for attention_backward_into() with these arguments. The
/// size is linear in the lengths. Each of the heads processed together needs its queries and grad_out in both row-major
/// and column-major order, and up to eight partial gradients of the queries, one per part of the keys. Each thread
/// needs a few tiles. This size is enough with or without products in bf16.
template <class Q, class K, class V, class M = Options>
std::size_t backward_workspace_bytes(const Q& query, const K& key, const V& value, const M& mods = {},
                                     const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  using T = typename decltype(call)::T;
  using Bound = std::remove_cvref_t<decltype(call.mods)>;
  const detail::LearnedIfAny<T, Bound> learned(call.mods, call.problem);
  const auto& kernels = detail::kKernelChoice<T, !detail::hold_computed_numbers<Q, K, V>()>;
  if constexpr (detail::lists_keys<Bound>())
    if (call.mods.grouped().gathers_backward(call.problem))
      return static_cast<std::size_t>(
          detail::listed_backward_bytes<T>(call.problem, detail::LearnedSizes::of(learned.get()),
                                           *call.mods.grouped().gathering, kernels, with.options));
  const bool may_round =
      detail::rounds_to_bf16(call.problem, with.options, {call.q.dtype(), call.k.dtype(), call.v.dtype()});
  return static_cast<std::size_t>(detail::backward_bytes<T>(call.problem, detail::LearnedSizes::of(learned.get()),
                                                            kernels, with.options, may_round));
}

/// Computes the gradients of attention_backward() by their definition, with all weights in memory. It is the reference
/// for tests and the baseline for benchmarks. It does not need the output; other arguments and errors are those of
/// attention_backward(). Memory: O(q_len * kv_len) per thread.
template <class G, class Q, class K, class V, class M = Options>
auto naive_attention_backward(const G& grad_out, const Q& query, const K& key, const V& value, const M& mods = {},
                              const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedNaiveBackward call(grad_out, query, key, value, with.mods, with.options);
  auto grads = call.gradients();
  call.run(grads.query, grads.key, grads.value, with.options);
  return grads;
}

}  // namespace attn::inline ATTN_BUILT_FOR
