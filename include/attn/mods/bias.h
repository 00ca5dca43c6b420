// bias(): a tensor added to the scores.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/mods/learned_mods.h"
#include "attn/core/simd/scalar_math.h"

namespace attn {

/// Adds an element of the tensor to each score: x -> x + tensor(batch, head, query row, kv). The element is not
/// multiplied by `scale`. If it is -inf, the score becomes -inf even if x is NaN, and the pair is dropped unless a
/// later mod makes the score finite.
///
/// The tensor may be anything attn::view accepts, of rank 1 to 4. Its dimensions are aligned from the right with
/// (batch, heads, q_len, kv_len), and dimensions of size 1 are broadcast. An Eigen vector has rank 1: one element per
/// key. The mod keeps a temporary alive; any other tensor is only viewed and must outlive the mod.
/// @throws std::invalid_argument from the attention call, if the shape does not fit.
template <class X>
auto bias(X&& tensor) {
  auto held = detail::broadcast_tensor(std::forward<X>(tensor));
  static_assert(!std::is_same_v<decltype(held), detail::BroadcastTensor<bool>>,
                "attn::bias: the tensor holds bool; to keep or drop pairs use attn::keep or attn::drop");
  return bind_mod([held = std::move(held)](const Problem& problem) {
    return score_mod([t = held.over(problem, "bias")](auto x, const Position& p) {
      return detail::biased(x, static_cast<decltype(x)>(t(p)));
    });
  });
}

/// bias() of a learned tensor: the backward pass adds its gradient to `grad`, a tensor of the same shape, summed over
/// broadcast dimensions. Both tensors must outlive the mod.
template <class X, class G>
auto bias(const X& tensor, G&& grad) {
  auto held = detail::broadcast_tensor(tensor);
  auto gradient = detail::gradient_tensor(std::forward<G>(grad), "bias");
  return bind_mod([held = std::move(held), gradient](const Problem& problem) {
    held.check_gradient(gradient, "bias");
    return detail::learned_score([](auto x, auto b, const Position&) { return detail::biased(x, b); },
                                 gradient.slots_of_pairs(problem), held.over(problem, "bias"), gradient,
                                 gradient.is_pairwise(problem));
  });
}

}  // namespace attn
