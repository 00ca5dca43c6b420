// Scalar functions that compilers can vectorise: they have no branches and no calls.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

#include "attn/core/simd/math_constants.h"
#include "attn/isa.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The hyperbolic tangent, within 4 units in the last place; NaN stays NaN. std::tanh is a call, and takes ten times as
/// long as all other work for a pair at head_dim 64.
template <class T>
inline T tanh(T x) {
  if constexpr (!std::is_same_v<T, float> && !std::is_same_v<T, double>) {
    return std::tanh(x);
  } else {
    using C = Exp2Constants<T>;
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    // tanh(|x|) = g / (g + 2) with g = exp(2|x|) - 1 = 2^n (2^f - 1) + (2^n - 1), where nothing cancels.
    const T a = std::abs(x);
    const T y = (a > C::kTanhIsOne ? C::kTanhIsOne : a) * (2 * std::numbers::log2e_v<T>);
    const T shifted = y + C::kRound, f = y - (shifted - C::kRound);
    const T power = std::bit_cast<T>(std::bit_cast<Bits>(shifted) << C::kMantissaBits);
    T p = C::kMinusOne[C::kDegree - 1];
    for (int i = C::kDegree - 2; i >= 0; --i) p = p * f + C::kMinusOne[i];
    const T g = power * (p * f) + (power - T(1));
    const T t = g / (g + T(2));
    return std::copysign(t, x);
  }
}

/// x + b, or -inf if b is -inf, even for an x of NaN or +inf, for which the plain sum would be NaN. The operand is
/// selected, not the sum, so that the addition is unconditional and vectorises. A b of NaN compares like -inf and gives
/// NaN.
template <class T>
inline T biased(T x, T b) {
  return (b >= std::numeric_limits<T>::lowest() ? x : T(0)) + b;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
