// What hints of masks have in common: distances between queries and keys, and which tiles to look into.
#pragma once

#include <limits>

#include "attn/types.h"

namespace attn::detail {

/// Longer than any sequence, but short enough that sums of it do not overflow.
constexpr Index kUnbounded = std::numeric_limits<Index>::max() / 4;

/// The smaller of steps * step and kUnbounded.
constexpr Index reach(Index steps, Index step) {
  Index product = 0;
  return __builtin_mul_overflow(steps, step, &product) || product > kUnbounded ? kUnbounded : product;
}

/// The range of q - kv over all pairs of a tile.
constexpr Range distances(const Tile& t) { return {t.q.begin - (t.kv.end - 1), t.q.end - t.kv.begin}; }

/// Whether a multiple of `step` lies in the range.
constexpr bool has_multiple(Range range, Index step) {
  if (range.empty()) return false;
  const Index last = range.end - 1, rest = last % step;
  return last - (rest < 0 ? rest + step : rest) >= range.begin;
}

/// Whether the tile is wider than any tile of neighbouring tokens, as a tile of token groups may be. Scanning it could
/// cost more than computing its pairs; Coverage::some and the whole range of keys are always valid answers.
constexpr bool is_wide(const Range& tokens) {
  constexpr Index kMost = 256;
  return tokens.size() > kMost;
}

}  // namespace attn::detail
