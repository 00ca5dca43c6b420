// learned(): scores changed by numbers of yours, with the gradients of these numbers.
#pragma once

#include <utility>
#include <vector>

#include "attn/detail/mods/learned_mods.h"

namespace attn {

/// Changes scores by a number of a table: x -> score(x, w, p), where w is element number where(p) of `table`, in
/// row-major order. The backward pass adds the gradient of each element to `grad`, a tensor of the same shape. `score`
/// need not have a derivative written out: it is differentiated in x and in w (see Dual).
///
///     // a penalty for each head that grows with distance, as far as it helps
///     auto penalty = attn::learned(weights, grad,
///                                  [](auto p) { return p.head; },
///                                  [](auto x, auto w, auto p) {
///                                    return x - w * float(p.q > p.kv ? p.q - p.kv : p.kv - p.q);
///                                  });
///
/// x and w have the same type. Both tensors are viewed, of rank 1 to 4, and must outlive the mod; what counts is what
/// the table holds when a call begins. `where` and `score` may be called from several threads at once, for any pair of
/// the call.
/// @throws std::invalid_argument if the shapes differ. An element that `where` names must exist: that is not checked.
template <class Table, class Grad, class Where, class Score>
auto learned(const Table& table, Grad&& grad, Where where, Score score) {
  using Place = typename detail::ResultOf<Where, Position>::type;
  static_assert(
      detail::callable<Place>,
      "attn::learned: the third argument must take a position and return the number of an element: [](auto p) { "
      "return p.head; }");
  static_assert(!detail::callable<Place> || std::is_integral_v<Place>,
                "attn::learned: the third argument must return the number of an element, an integer");
  static_assert(
      detail::callable<typename detail::ResultOf<Score, float, float, Position>::type>,
      "attn::learned: the last argument must take a score, an element and a position: [](auto x, auto w, auto p) { "
      "return x * w; }");
  auto held = detail::broadcast_tensor(table);
  auto gradient = detail::gradient_tensor(std::forward<Grad>(grad), "learned");
  held.check_gradient(gradient, "learned");
  return bind_mod([held = std::move(held), gradient, where, score](const Problem&) {
    return detail::learned_score(
        score, [where](const Position& p) { return static_cast<Index>(where(p)); },
        [where, numbers = held.row_major()](const Position& p) { return numbers[static_cast<std::size_t>(where(p))]; },
        gradient, false);
  });
}

}  // namespace attn
