// The mods of a call, bound to its sizes, for all batch elements.
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <utility>
#include <vector>

#include "attn/core/mods/bound_mods.h"

namespace attn::detail {

/// The bound mods of a call, or a type that replaces them: the mods of each batch element and their common properties.
template <class M>
concept ModsOfCall = requires(const M& mods, Index batch) {
  requires std::same_as<const bool, decltype(M::kHasScores)> && std::same_as<const bool, decltype(M::kHasMasks)>;
  requires std::same_as<const bool, decltype(M::kIsOpaque)> && std::same_as<const bool, decltype(M::kHasSinks)>;
  requires std::same_as<const bool, decltype(M::kHasDropout)>;
  { mods.of(batch) } -> ModsOfElement;
};

/// The mods of a call: bound once for all batch elements, or once per element if elements have different positions.
template <class One>
class CallMods {
 public:
  static constexpr bool kHasScores = One::kHasScores;
  static constexpr bool kHasMasks = One::kHasMasks;
  static constexpr bool kIsOpaque = One::kIsOpaque;
  static constexpr bool kHasSinks = One::kHasSinks;
  static constexpr bool kHasDropout = One::kHasDropout;
  static constexpr bool kIsGrouped = One::kIsGrouped;
  static constexpr bool kLearns = One::kLearns;

  /// `make(i)` returns the mods of batch element i.
  template <class Make>
  CallMods(Index count, const Make& make) : first_(make(0)) {
    others_.reserve(static_cast<std::size_t>(count - 1));
    for (Index i = 1; i < count; ++i) others_.push_back(make(i));
  }

  const One& of(Index batch) const {
    return batch == 0 || others_.empty() ? first_ : others_[static_cast<std::size_t>(batch - 1)];
  }

  /// Returns the grouped mask; see BoundMods. Its grouping of tokens does not depend on their positions.
  const auto& grouped() const requires kIsGrouped { return first_.grouped(); }
  auto with_near_part() const requires kIsGrouped {
    const auto near = [&](Index i) { return of(i).with_near_part(); };
    return CallMods<decltype(near(0))>(static_cast<Index>(others_.size()) + 1, near);
  }

 private:
  One first_;  // stored inline, because most calls have no others
  std::vector<One> others_;
};

/// bind() for all batch elements of a call.
/// @throws std::invalid_argument as bind() does, and for sinks with a sigmoid, which has no denominator.
template <class M>
auto bind_call(const M& mods, const Problem& problem) {
  const auto of = [&](Index batch) {
    if (problem.q_offsets.empty()) return detail::bind(mods, problem);
    Problem own = problem;
    own.q_offset = problem.first_query(batch);
    own.q_offsets = {};
    own.sequence = batch;
    return detail::bind(mods, own);
  };
  CallMods<decltype(of(0))> bound(std::max<Index>(static_cast<Index>(problem.q_offsets.size()), 1), of);
  if constexpr (decltype(bound)::kHasSinks)
    for (Index head = 0; problem.sigmoid_bias && head < problem.heads; ++head)
      require(bound.of(0).sink(head) == -std::numeric_limits<double>::infinity(),
              "sinks() join the denominator of a softmax, which a sigmoid does not have, but head ", head,
              " has a sink of ", bound.of(0).sink(head));
  return bound;
}

/// The type that bind_call() returns.
template <class M>
using Bound = decltype(bind_call(std::declval<const M&>(), std::declval<const Problem&>()));

/// Holds a Made, which implements Interface, if kAny; otherwise holds nothing, and get() returns null.
template <class Interface, class Made, bool kAny>
class MadeIfAny {
 public:
  template <class... From>
  explicit MadeIfAny(const From&... from) : made_(from...) {}
  const Interface* get() const { return &made_; }

 private:
  Made made_;
};
template <class Interface, class Made>
class MadeIfAny<Interface, Made, false> {
 public:
  template <class... From>
  explicit MadeIfAny(const From&...) {}
  const Interface* get() const { return nullptr; }
};

}  // namespace attn::detail
