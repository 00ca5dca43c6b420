// bias(): a tensor added to the scores.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/detail/mods/broadcast.h"
#include "attn/detail/mods/learned_mods.h"
#include "attn/detail/simd/scalar_math.h"
#include "attn/mod.h"

namespace attn {

/// Adds an element of the tensor to each score: x + bias(batch, head, query row, kv). It is not multiplied by scale. If
/// the element is -inf, the score becomes -inf whatever x is, NaN included, and the pair is dropped, unless a later mod
/// turns -inf into a finite number.
///
/// The tensor is anything attn::view takes, of rank 1 to 4, aligned from the right with (batch, heads, q_len, kv_len);
/// a size of 1 is broadcast. An Eigen vector has rank 1 and gives a number for each key. A temporary is kept alive in
/// the mod; any other tensor is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit.
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

/// bias() of a tensor that is learned: the backward pass adds its gradient to `grad`, a tensor of the same shape,
/// summed over broadcast dimensions. Both must outlive the mod.
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
