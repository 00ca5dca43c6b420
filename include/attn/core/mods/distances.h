// Helpers for mask hints: distances between queries and keys, and which tiles are worth scanning.
#pragma once

#include <limits>

#include "attn/types.h"

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

}  // namespace attn::detail
