// Numbers rounded to multiples, and ranges joined.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/types.h"

namespace attn::detail {

constexpr Index kAlignment = 64;  // bytes: one cache line, and the widest vector register there is

/// Division rounded towards plus and towards minus infinity, and the remainder of the latter: positions of queries may
/// be negative. The divisor is positive. Nothing overflows on the way.
template <class N>
constexpr N ceil_div(N n, std::type_identity_t<N> by) {
  if (by == 1) return n;  // see divide()
  return n / by + (n % by > 0);
}
constexpr Index floor_div(Index n, Index by) { return n / by - (n % by < 0); }
constexpr Index floor_mod(Index n, Index by) { return n % by + (n % by < 0 ? by : 0); }

/// n / by and n % by at once. A division takes as long as a dozen products, and a call of one query made two dozen of
/// them, most by 1; so a divisor of 1 is looked at first.
struct Division {
  Index quotient, remainder;
};
constexpr Division divide(Index n, Index by) {
  if (by == 1) return {n, 0};
  return {n / by, n % by};
}

/// The next multiple from `n` on.
template <class N>
constexpr N padded(N n, std::type_identity_t<N> multiple) {
  return ceil_div(n, multiple) * multiple;
}

/// The smallest range that covers both.
constexpr Range hull(const Range& a, const Range& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace attn::detail
