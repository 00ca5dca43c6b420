// Numbers rounded to multiples, and ranges joined.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/types.h"

namespace attn::detail {

/// Division towards plus and minus infinity, and what remains of the latter: positions of queries may be negative. The
/// divisor is positive. Nothing overflows on the way.
template <class N>
constexpr N ceil_div(N n, std::type_identity_t<N> by) {
  return n / by + (n % by > 0);
}
constexpr Index floor_div(Index n, Index by) { return n / by - (n % by < 0); }
constexpr Index floor_mod(Index n, Index by) { return n % by + (n % by < 0 ? by : 0); }

/// n / by and n % by, both at once, for divisors that mostly are 1 where a call is small: a division takes as long as a
/// dozen products, and there were two dozen in a call of one query.
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

/// All that lies in one of two ranges or between them.
constexpr Range hull(const Range& a, const Range& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace attn::detail
