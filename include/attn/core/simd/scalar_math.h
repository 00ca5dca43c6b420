// Constants of the exponential function and of the hyperbolic tangent, and scalar functions that compilers can
// vectorise: they have no branches and no calls.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

#include "attn/isa.h"

namespace attn::detail {

/// kPolynomial: 2^f on [-1/2, 1/2], and kMinusOne: (2^f - 1) / f there; both minimax in relative error, found by the
/// Remez exchange. Their errors of 1.9e-9 and 1.1e-8 (float), 3e-18 and 1.8e-17 (double) are well below the rounding
/// errors of the evaluation. With one degree less, the error in float is 7.5e-8, which is not well below the rounding
/// errors, and the gain in speed was within the noise.
///
/// kRound: adding 1.5 * 2^mantissa rounds a number to an integer in the low bits; the exponent's bias is added too, so
/// that shifting those bits up by kMantissaBits gives 2^n. kSmallest: e^x is normal for all x from there on.
/// kTanhIsOne: tanh(x) rounds to 1 for all x above this bound.
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr int kMantissaBits = 23, kDegree = 6;
  static constexpr float kRound = 12582912.0f + 127.0f, kSmallest = -87.3365f, kTanhIsOne = 10.0f;
  static constexpr float kPolynomial[] = {1.0000000005541663f,    0.69314720573725267f,   0.24022646890639572f,
                                          0.055503287769976638f,  0.0096184889565227916f, 0.0013399931209474140f,
                                          0.00015345812158740182f};
  static constexpr float kMinusOne[] = {0.69314718792668567f,   0.24022649794964410f,   0.055503574336481868f,
                                        0.0096182374941833146f, 0.0013390735475399872f, 0.00015403512618661003f};
};

template <>
struct Exp2Constants<double> {
  static constexpr int kMantissaBits = 52, kDegree = 11;
  static constexpr double kRound = 6755399441055744.0 + 1023.0, kSmallest = -708.396, kTanhIsOne = 20.0;
  static constexpr double kPolynomial[] = {
      0.9999999999999999971,    0.69314718055994533046,   0.24022650695910156205,    0.055504108664819921483,
      0.0096181291075883350833, 0.0013333558146789950323, 0.00015403530462514613026, 1.52527334899608046e-5,
      1.3215433089594629037e-6, 1.0178198033328527662e-7, 7.0741056262456593708e-9,  4.4352809446103361611e-10};
  static constexpr double kMinusOne[] = {
      0.6931471805599453112,    0.24022650695910097889,    0.055504108664821236499,    0.0096181291076070652998,
      0.0013333558146531644707, 0.00015403530441481283746, 0.000015252733701200713074, 1.3215442723878388157e-6,
      1.0178121305806718011e-7, 7.0725617683983011661e-9,  4.4455361318481760235e-10};
};

/// tanh x = x P(x²) / Q(x²) up to kIsOne, where tanh starts to round to 1. P and Q are minimax in relative error, found
/// by the Remez exchange: 2.1e-8 in float, 6.9e-17 in double, below the rounding errors of the evaluation. All
/// coefficients are positive, so nothing cancels, and Q stays below 500 (float) and 1e6 (double).
template <class T>
struct TanhConstants;

template <>
struct TanhConstants<float> {
  static constexpr int kDegree = 4;
  static constexpr float kIsOne = 9.02f;
  static constexpr float kP[] = {0.99999997901127378f, 0.13379717317152729f, 0.0034940338566375610f,
                                 2.0583471018330414e-5f, 1.3319059905559057e-8f};
  static constexpr float kQ[] = {1.0f, 0.46713032555574882f, 0.025871070430545015f, 3.2830917489197193e-4f,
                                 7.7620140766716226e-7f};
};

template <>
struct TanhConstants<double> {
  static constexpr int kDegree = 9;
  static constexpr double kIsOne = 19.07;
  static constexpr double kP[] = {0.999999999999999931249,    0.151806513969147160609,    0.00597488540717247595867,
                                  9.36094038335757986323e-5,  6.83131210732833712433e-7,  2.44093273289543935318e-9,
                                  4.17183612613016893120e-12, 3.06434480162555904854e-15, 7.41545911536824693693e-19,
                                  2.50207372706048702500e-23};
  static constexpr double kQ[] = {1.0,
                                  0.485139847302479621458,
                                  0.0343548345080008442649,
                                  8.28161901088893711835e-4,
                                  8.75445035949346614607e-6,
                                  4.46388939397507399770e-8,
                                  1.11136143129460505028e-10,
                                  1.27068351231374522113e-13,
                                  5.63289611135884844946e-17,
                                  6.22479237997771812696e-21};
};

}  // namespace attn::detail

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
