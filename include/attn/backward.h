// Gradients of attention with respect to queries, keys and values.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/attention.h"
#include "attn/detail/backward/checked_backward.h"

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// The gradients of a loss with respect to query, key and value, given the gradient with respect to the output:
///
///     auto r = attn::attention(q, k, v, mods, options);
///     auto g = attn::attention_backward(grad_out, q, k, v, r, mods, options);   // g.query, g.key, g.value
///
/// They are exact for what attention() computes. With the weights P, dP = grad_out * valueᵀ and dX = P * (dP - sum P *
/// dP), grad_value = Pᵀ * grad_out, and through the mods' derivatives grad_query = scale * dS * key, grad_key = scale *
/// dSᵀ * query (Dao et al. 2022, appendix B). Score lambdas are called with dual numbers (see Dual), so that nobody
/// writes a derivative.
///
/// @param grad_out  shaped as out; or {grad_out, grad_lse} as a Result, where the loss depends on lse too.
/// @param result    what attention() returned for the same query, key, value, mods and options.
/// @returns tensors shaped as query, key and value, in the scalar type and storage order of each.
///
/// Heads that share keys add up their gradients. A query that keeps no key has gradient 0 and gives none; what stands
/// in dropped pairs, NaN included, reaches no gradient. Results are the same bits for any number of threads and any
/// batch. Cost: five products where attention() has two, because scores are computed again from tiles. The matrix unit
/// forms them where query, key, value and grad_out are bf16 (or Options::compute lets them be rounded) and have no row
/// longer than 2^30. Weights and gradients of scores are then rounded to bf16, and sums are float; one longer row in
/// the batch leaves the whole call to float. Keys that select() lists for each query are gathered, and cost what the
/// lists are long. Extra memory: O(len * (head_dim + v_dim)) for some heads at a time; see
/// backward_workspace_bytes().
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
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
/// Not to be called: does not compile, with the sentence of detail::check_result() or detail::check_order().
template <class G, class Q, class K, detail::Viewable V, class R, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention_backward(const G&, const Q&, const K&, const V&, const R&,
                                                                   const M&, const Wrong&, const More&...) {
  if constexpr (detail::check_result<R>()) detail::check_order<M, Wrong, More...>();
}

/// attention_backward() into the caller's memory, which is overwritten, or added to with options.accumulate: matrices,
/// or rank-4 tensors or views, shaped as query, key and value. None may overlap an input or another gradient, which is
/// refused as by attention_into(). With options.workspace nothing is allocated, but once for the queries of each key
/// that select() lists.
///
/// `out` and `lse` are those of a Result; or the Result itself stands in their place:
///
///     attention_backward_into(grad_q, grad_k, grad_v, grad_out, q, k, v, r, mods, options);
///
/// The gradients of a row need its out and lse to more digits than a tensor of 16 bits, or a float near -1e9, has.
/// Those of a Result carry them (see Result). Where attention_into() writes to memory of your own, keep `out` in float
/// beside queries of 16 bits, and `lse` in a Tensor: an out of 16 bits makes gradients wrong by its rounding, times
/// whatever the keys have in common.
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

/// Not to be called: does not compile, with the sentence of detail::check_result().
template <class GQ, class GK, class GV, class G, class Q, class K, class V, class... Given>
requires(!detail::begins_with_result<Given...>) void attention_backward_into(GQ&&, GK&&, GV&&, const G&, const Q&,
                                                                             const K&, const V&, const Given&...) {
  detail::check_result<G>();
}

/// The bytes that Options::workspace must have for attention_backward_into() with such arguments. They are linear in
/// the lengths: for each of the heads that are worked on together, queries and grad_out as rows and as columns, and up
/// to eight gradients of the queries, one for each part of the keys; and for each thread some tiles. The number is
/// enough whether the matrix unit serves the call or not.
template <class Q, class K, class V, class M = Options>
std::size_t backward_workspace_bytes(const Q& query, const K& key, const V& value, const M& mods = {},
                                     const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedCall call(query, key, value, with.mods, with.options, detail::Outputs::given);
  using T = typename decltype(call)::T;
  using Bound = std::remove_cvref_t<decltype(call.mods)>;
  const detail::LearnedIfAny<T, Bound> learned(call.mods, call.problem);
  const auto& kernels = detail::kernels_among<T, detail::hold_computed_numbers<Q, K, V>()>();
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

/// The same gradients as attention_backward() by their definition, with all weights in memory. It is the reference for
/// tests and the yardstick for speed. The output is not needed; arguments and errors as for attention_backward().
/// Memory O(q_len * kv_len) per thread.
template <class G, class Q, class K, class V, class M = Options>
auto naive_attention_backward(const G& grad_out, const Q& query, const K& key, const V& value, const M& mods = {},
                              const Options& options = {}) {
  const detail::ModsAndOptions with(mods, options);
  const detail::CheckedNaiveBackward call(grad_out, query, key, value, with.mods, with.options);
  auto grads = call.gradients();
  call.run(grads.query, grads.key, grads.value, with.options);
  return grads;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
