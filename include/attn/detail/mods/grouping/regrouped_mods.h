// The mods of a call as they apply to groups of its tokens, or to gathered tokens.
#pragma once

#include <algorithm>

#include "attn/detail/mods/bound_mods.h"

namespace attn::detail {

/// What a path sees of the mods when it works on groups, in place of BoundMods. Positions are numbers within a group. A
/// pair is kept if `far`, a mask on those numbers, keeps it, and `others` keep it where it lies in the whole call.
/// Groups: TokenGroups or GatheredTokens.
template <class Far, class Others, class Groups>
class RegroupedMods {
 public:
  static constexpr bool kHasScores = Others::kHasScores;
  static constexpr bool kHasMasks = true;
  static constexpr bool kIsOpaque = Others::kIsOpaque;
  static constexpr bool kHasSinks = Others::kHasSinks;
  static constexpr bool kHasDropout = Others::kHasDropout;
  static constexpr bool kLearns = Others::kLearns;

  RegroupedMods(const Far& far, const Others& others, const Groups& groups)
      : far_(far), others_(others), groups_(groups) {}

  const RegroupedMods& of(Index) const { return *this; }

  template <class X>
  X score(X x, const Position& p) const {
    return others_.score(x, groups_.in_call(p));
  }
  template <class T, class Add>
  T learn(T x, T grad, const Position& p, const Add& add) const {
    return others_.learn(x, grad, groups_.in_call(p), add);
  }
  template <class Visit>
  void each_learned(const Visit& visit) const {
    others_.each_learned(visit);
  }
  bool keep(const Position& p) const {
    bool kept = far_.keep(p);
    if constexpr (Others::kHasMasks) kept = kept & others_.keep(groups_.in_call(p));
    return kept;
  }
  double sink(Index head) const { return others_.sink(groups_.head_in_call(head)); }
  long double weight_factor(const Position& p) const { return others_.weight_factor(groups_.in_call(p)); }
  long double kept_factor() const { return others_.kept_factor(); }
  template <class Visit>
  void each_dropout(const Visit& visit) const {
    others_.each_dropout(visit);
  }
  PairGrid grid(const Tile& t) const { return groups_.grid(t); }

  /// The others are also asked about what lies between the pairs. Where they say none or all, it is true of the pairs.
  Coverage coverage(const Tile& tile) const {
    const Coverage far = far_.coverage(tile);
    if (!Others::kHasMasks || far == Coverage::none) return far;
    return std::min(far, others_.coverage(groups_.in_call(tile)));
  }
  Range kv_range(const Tile& tile) const {
    const Range far = far_.kv_range(tile);
    if (!Others::kHasMasks || far.empty()) return far;
    const Tile seen{tile.batch, tile.head, tile.q, far};
    return intersect(far, groups_.kv_numbers(others_.kv_range(groups_.in_call(seen)), seen));
  }

 private:
  const Far& far_;
  const Others& others_;
  Groups groups_;
};

}  // namespace attn::detail
