// The mods of a call, applied to a part of it with different positions.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/bound_mods.h"

namespace attn::detail {

/// A mask that keeps every pair.
struct EveryPair {
  constexpr bool keep(const Position&) const { return true; }
  constexpr Coverage coverage(const Tile&) const { return Coverage::all; }
  constexpr Range kv_range(const Tile& tile) const { return tile.kv; }
};
inline constexpr EveryPair kEveryPair;

/// The mods of one batch element for a path that processes a part of the call, in place of BoundMods. Positions are
/// indices within the part, and `map` converts them to positions in the call:
///
///     Position in_call(const Position& p) const;
///     Index head_in_call(Index head) const;
///     PairGrid grid(const Tile& t) const;                         the pairs of a tile of the part
///     Range kv_numbers(const Range& kv, const Tile& t) const;     indices of the keys in a range of the call
///
/// A pair is kept if `far`, a mask on the indices, keeps it and the mods keep it at its position in the call.
template <class Mods, class Map, class Far = EveryPair>
class MappedMods {
 public:
  static constexpr bool kHasScores = Mods::kHasScores;
  static constexpr bool kHasMasks = Mods::kHasMasks || !std::is_same_v<Far, EveryPair>;
  static constexpr bool kHasWords = false;
  static constexpr bool kIsOpaque = Mods::kIsOpaque;
  static constexpr bool kHasSinks = Mods::kHasSinks;
  static constexpr bool kHasWeights = Mods::kHasWeights;
  static constexpr bool kHasDropout = Mods::kHasDropout;
  static constexpr bool kLearns = Mods::kLearns;

  MappedMods(const Mods& mods, const Map& map, const Far& far = kEveryPair) : mods_(mods), map_(map), far_(far) {}

  const MappedMods& of(Index) const { return *this; }

  template <class X>
  X score(X x, const Position& p) const {
    return mods_.score(x, map_.in_call(p));
  }
  template <class X>
  X weight(X w, const Position& p) const {
    return mods_.weight(w, map_.in_call(p));
  }
  template <class T, class Add>
  T learn(T x, T grad, const Position& p, const Add& add) const {
    return mods_.learn(x, grad, map_.in_call(p), add);
  }
  template <class Visit>
  void each_learned(const Visit& visit) const {
    mods_.each_learned(visit);
  }
  bool keep(const Position& p) const {
    bool kept = far_.keep(p);
    if constexpr (Mods::kHasMasks) kept = kept & mods_.keep(map_.in_call(p));
    return kept;
  }
  double sink(Index head) const { return mods_.sink(map_.head_in_call(head)); }
  long double weight_factor(const Position& p) const { return mods_.weight_factor(map_.in_call(p)); }
  long double kept_factor() const { return mods_.kept_factor(); }
  template <class Visit>
  void each_dropout(const Visit& visit) const {
    mods_.each_dropout(visit);
  }
  PairGrid grid(const Tile& t) const { return map_.grid(t); }

  /// The mods see the hull of the pairs that `far` may keep, which also contains the pairs in between. If they keep all
  /// or none of the hull, the same holds for these pairs. Other keys of the tile may be those of another list, at any
  /// positions.
  Coverage coverage(const Tile& tile) const {
    const Coverage far = far_.coverage(tile);
    if (!Mods::kHasMasks || far == Coverage::none) return far;
    const Tile seen{tile.batch, tile.head, tile.q, intersect(tile.kv, far_.kv_range(tile))};
    return seen.kv.empty() ? Coverage::none : std::min(far, mods_.coverage(hull_in_call(seen)));
  }
  Range kv_range(const Tile& tile) const {
    const Range far = far_.kv_range(tile);
    if (!Mods::kHasMasks || tile.q.empty() || far.empty()) return far;
    const Tile seen{tile.batch, tile.head, tile.q, far};
    return intersect(far, map_.kv_numbers(mods_.kv_range(hull_in_call(seen)), seen));
  }

 private:
  /// Returns the smallest tile of the call that contains all pairs of a tile of the part, and hence also the pairs in
  /// between. Neither range may be empty.
  Tile hull_in_call(const Tile& t) const {
    const Position first = map_.in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}),
                   last = map_.in_call(Position{t.batch, t.head, t.q.end - 1, t.kv.end - 1});
    return {first.batch, first.head, {first.q, last.q + 1}, {first.kv, last.kv + 1}};
  }

  const Mods& mods_;
  Map map_;
  const Far& far_;
};

}  // namespace attn::detail
