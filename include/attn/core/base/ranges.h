// Integer division, rounding to multiples, and the hull of ranges.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/types.h"

namespace attn::detail {

constexpr Index kAlignment = 64;  // bytes: one cache line, and the widest vector register

/// Division rounded towards plus and towards minus infinity, and the remainder of the latter. The dividend may be
/// negative, as positions of queries may be; the divisor is positive. No intermediate result overflows.
template <class N>
constexpr N ceil_div(N n, std::type_identity_t<N> by) {
  if (by == 1) return n;  // see divide()
  return n / by + (n % by > 0);
}
constexpr Index floor_div(Index n, Index by) { return n / by - (n % by < 0); }
constexpr Index floor_mod(Index n, Index by) { return n % by + (n % by < 0 ? by : 0); }

/// n / by and n % by together. A division takes as long as a dozen multiplications, and a call with one query made two
/// dozen divisions, most by 1; so a divisor of 1 is checked for first.
struct Division {
  Index quotient, remainder;
};
constexpr Division divide(Index n, Index by) {
  if (by == 1) return {n, 0};
  return {n / by, n % by};
}

/// Rounds `n` up to the next multiple.
template <class N>
constexpr N padded(N n, std::type_identity_t<N> multiple) {
  return ceil_div(n, multiple) * multiple;
}

/// Returns the smallest range that covers both.
constexpr Range hull(const Range& a, const Range& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace attn::detail
