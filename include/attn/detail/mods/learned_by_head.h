// Mods with one learned parameter per head.
#pragma once

#include <utility>

#include "attn/detail/mods/learned_mods.h"
#include "attn/detail/mods/lengths.h"

namespace attn::detail {

/// @throws std::invalid_argument unless there is one parameter, and one gradient, per head.
template <class Gradient>
void check_by_head(const char* mod, Index given, const Gradient& gradient, const Problem& problem) {
  require(given == problem.heads, mod, " has ", given, " values for ", problem.heads, " heads");
  require(gradient.slots() == problem.heads, mod, ": the gradient tensor has shape ", gradient.given_shape(),
          ", but there are ", problem.heads, " heads");
}

/// Makes the score mod x -> score(x, numbers[head], p).
template <class Grad, class Score>
auto learned_by_head(const char* mod, Numbers given, Grad&& grad, Score score) {
  auto gradient = gradient_tensor(std::forward<Grad>(grad), mod);
  return bind_mod([mod, numbers = std::move(given.values), gradient, score](const Problem& problem) {
    check_by_head(mod, static_cast<Index>(numbers.size()), gradient, problem);
    const auto slot = [](const Position& p) { return p.head; };
    return learned_score(
        score, slot, [n = numbers.data()](const Position& p) { return n[p.head]; }, gradient, false);
  });
}

}  // namespace attn::detail
