// learned(): a score mod with learned parameters.
#pragma once

#include <utility>

#include "attn/core/mods/learned_mods.h"

namespace attn {

/// Changes scores with learned parameters: x -> score(x, w, p), where w is element where(p) of `table`, in row-major
/// order. The backward pass adds the gradient of each element to `grad`, a tensor of the same shape. `score` needs no
/// hand-written derivative: it is differentiated with respect to x and w automatically (see Dual).
///
///     // a learned penalty per head that grows with distance
///     auto penalty = attn::learned(weights, grad,
///                                  [](auto p) { return p.head; },
///                                  [](auto x, auto w, auto p) {
///                                    return x - w * float(p.q > p.kv ? p.q - p.kv : p.kv - p.q);
///                                  });
///
/// x and w have the same type. Both tensors, of rank 1 to 4, are viewed and must outlive the mod; a call reads the
/// table once, when it begins. `where` and `score` may be called from several threads at once, for any pair of the
/// call.
/// @throws std::invalid_argument if the shapes differ. The index that `where` returns is not checked.
template <class Table, class Grad, class Where, class Score>
auto learned(const Table& table, Grad&& grad, Where where, Score score) {
  using Place = typename detail::ResultOf<Where, Position>::type;
  static_assert(detail::callable<Place>,
                "attn::learned: the third argument must take a position and return the index of an element: [](auto p) "
                "{ return p.head; }");
  static_assert(!detail::callable<Place> || std::is_integral_v<Place>,
                "attn::learned: the third argument must return an integer, the index of an element");
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
