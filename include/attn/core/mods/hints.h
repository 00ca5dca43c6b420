// Helpers for masks and their hints: ranges of keys, distances, and which tiles are worth scanning.
#pragma once

#include <limits>

#include "attn/mod.h"

namespace attn::detail {

/// A length greater than that of any sequence, but so small that a sum of a few such lengths does not overflow.
constexpr Index kUnbounded = std::numeric_limits<Index>::max() / 4;

/// Returns min(steps * step, kUnbounded), without overflow.
constexpr Index reach(Index steps, Index step) {
  Index product = 0;
  return __builtin_mul_overflow(steps, step, &product) || product > kUnbounded ? kUnbounded : product;
}

/// Returns the range of q - kv over all pairs of a tile.
constexpr Range distances(const Tile& t) { return {t.q.begin - (t.kv.end - 1), t.q.end - t.kv.begin}; }

/// Whether the range contains a multiple of `step`.
constexpr bool has_multiple(Range range, Index step) {
  if (range.empty()) return false;
  const Index last = range.end - 1, rest = last % step;
  return last - (rest < 0 ? rest + step : rest) >= range.begin;
}

/// Whether the range is wider than in any tile of neighbouring tokens, as it may be in tiles of token groups. Scanning
/// such a tile could cost more than computing its pairs; Coverage::some and the whole range of keys are always valid
/// answers.
constexpr bool is_wide(const Range& tokens) {
  constexpr Index kMost = 256;
  return tokens.size() > kMost;
}

/// The beginning of a range that contains all keys before its end.
constexpr Index kFirstKey = std::numeric_limits<Index>::min();

/// The mask of queries that each keep a range of keys: range_of(p) is that of query p.q and does not read p.kv. Neither
/// end of the range may decrease from one query of a head to the next.
template <class RangeOf>
auto keep_ranges(RangeOf range_of) {
  const auto of_first = [range_of](const Tile& t) { return range_of(Position{t.batch, t.head, t.q.begin, 0}); };
  const auto of_last = [range_of](const Tile& t) { return range_of(Position{t.batch, t.head, t.q.end - 1, 0}); };
  return mask_mod(
      [range_of](const Position& p) {
        const Range kept = range_of(p);
        return bool((kept.begin <= p.kv) & (p.kv < kept.end));  // with &&, a loop is not vectorised: 13 % slower
      },
      [of_first, of_last](const Tile& t) {
        const Range first = of_first(t), last = of_last(t);
        if (intersect({first.begin, last.end}, t.kv).empty()) return Coverage::none;
        return last.begin <= t.kv.begin && t.kv.end <= first.end ? Coverage::all : Coverage::some;
      },
      [of_first, of_last](const Tile& t) {
        return Range{of_first(t).begin, of_last(t).end};
      });
}

}  // namespace attn::detail
