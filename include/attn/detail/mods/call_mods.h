// The mods of one call, bound to its sizes, for all its batch elements.
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <utility>
#include <vector>

#include "attn/detail/mods/bound_mods.h"

namespace attn::detail {

/// What may stand in place of a call's bound mods: the mods of each of its batch elements, and what these have in
/// common.
template <class M>
concept ModsOfCall = requires(const M& mods, Index batch) {
  requires std::same_as<const bool, decltype(M::kHasScores)> && std::same_as<const bool, decltype(M::kHasMasks)>;
  requires std::same_as<const bool, decltype(M::kIsOpaque)> && std::same_as<const bool, decltype(M::kHasSinks)>;
  requires std::same_as<const bool, decltype(M::kHasDropout)>;
  { mods.of(batch) } -> ModsOfElement;
};

/// The mods of a call: bound once for all batch elements, or once for each where they have positions of their own.
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

  /// make(i) gives the mods of batch element number i.
  template <class Make>
  CallMods(Index count, const Make& make) : first_(make(0)) {
    others_.reserve(static_cast<std::size_t>(count - 1));
    for (Index i = 1; i < count; ++i) others_.push_back(make(i));
  }

  const One& of(Index batch) const {
    return batch == 0 || others_.empty() ? first_ : others_[static_cast<std::size_t>(batch - 1)];
  }

  /// The grouped mask; see BoundMods. How it groups tokens does not depend on where they are.
  const auto& grouped() const requires kIsGrouped { return first_.grouped(); }
  auto with_near_part() const requires kIsGrouped {
    const auto near = [&](Index i) { return of(i).with_near_part(); };
    return CallMods<decltype(near(0))>(static_cast<Index>(others_.size()) + 1, near);
  }

 private:
  One first_;  // not on the heap, because most calls have no other
  std::vector<One> others_;
};

/// bind() for all batch elements of a call.
/// @throws std::invalid_argument as bind() does, and where sinks have no denominator to join.
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
              "sinks() join the denominator of a softmax; a sigmoid has none, but head ", head, " has a sink of ",
              bound.of(0).sink(head));
  return bound;
}

/// The type that bind_call() makes of mods.
template <class M>
using Bound = decltype(bind_call(std::declval<const M&>(), std::declval<const Problem&>()));

/// Holds a Made, which implements Interface, if kAny; else nothing, and get() is null.
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
