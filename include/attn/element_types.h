// Element types of caches that take less memory than 16-bit floats.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <Eigen/Core>

#include "attn/types.h"

namespace attn {

namespace detail {
/// An 8-bit float with a fraction of `fraction` bits, as the OCP specification of 8-bit floating point (OFP8, revision
/// 1.0) defines them: 3 bits for E4M3, which has no infinities and a single NaN, and 2 for E5M2. Rounds to nearest,
/// ties to even. Finite numbers beyond the largest become the largest.
inline std::uint8_t to_float8(float x, int fraction) {
  const bool has_infinity = fraction == 2;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), sign = bits >> 24 & 0x80u;
  if (!std::isfinite(x))
    return static_cast<std::uint8_t>(sign | (has_infinity ? std::isnan(x) ? 0x7eu : 0x7cu : 0x7fu));
  const float magnitude = std::min(std::abs(x), has_infinity ? 57344.0f : 448.0f);
  // Below the smallest normal number, the code is the number in units of its last bit. Adding this power of two, whose
  // last bit has the same weight, rounds to it.
  const float smallest = has_infinity ? 0x1p-14f : 0x1p-6f, round = has_infinity ? 0x1p7f : 0x1p14f;
  const auto code = [](float y) { return std::bit_cast<std::uint32_t>(y); };
  if (magnitude < smallest) return static_cast<std::uint8_t>(sign | (code(magnitude + round) - code(round)));
  const int dropped = 23 - fraction;
  const std::uint32_t half = (1u << (dropped - 1)) - 1 + (code(magnitude) >> dropped & 1u);
  const std::uint32_t bias = (has_infinity ? 127u - 15u : 127u - 7u) << fraction;
  return static_cast<std::uint8_t>(sign | (((code(magnitude) + half) >> dropped) - bias));
}
/// The bits of an E4M3 number / 256, and of an E5M2 number, as IEEE 754 binary16.
inline std::uint16_t half_of_float8(std::uint8_t bits, int fraction) {
  const unsigned sign = bits & 0x80u, magnitude = bits & 0x7fu, nan = magnitude == 0x7fu ? 0x7e00u : 0u;
  return static_cast<std::uint16_t>(sign << 8 | (fraction == 3 ? magnitude << 7 | nan : magnitude << 8));
}
inline float from_float8(std::uint8_t bits, int fraction) {
  const float half = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(half_of_float8(bits, fraction)));
  return fraction == 3 ? half * 256 : half;
}
}  // namespace detail

/// An 8-bit float with 4 bits of exponent and 3 of fraction (E4M3FN): magnitudes from 2^-9 to 448, and NaN. Conversion
/// rounds to nearest, ties to even; larger finite numbers become 448, infinities NaN.
struct Float8E4M3 {
  std::uint8_t bits = 0;  ///< sign, exponent and fraction

  Float8E4M3() = default;
  /// Converts a float.
  explicit Float8E4M3(float x) : bits(detail::to_float8(x, 3)) {}
  /// The number, exactly.
  explicit operator float() const { return detail::from_float8(bits, 3); }
};

/// An 8-bit float with 5 bits of exponent and 2 of fraction: magnitudes from 2^-16 to 57344, infinities and NaN.
/// Conversion rounds to nearest, ties to even; larger finite numbers become 57344.
struct Float8E5M2 {
  std::uint8_t bits = 0;  ///< sign, exponent and fraction

  Float8E5M2() = default;
  /// Converts a float.
  explicit Float8E5M2(float x) : bits(detail::to_float8(x, 2)) {}
  /// The number, exactly.
  explicit operator float() const { return detail::from_float8(bits, 2); }
};

/// 32 numbers of 4 bits that share a scale, 4.5 bits per number: number i is (digit(i) - 8) * scale. The number of the
/// largest magnitude has digit 0. The others are off by at most |scale| / 2; but those above 7.5 |scale| that have the
/// other sign have digit 15 and are off by up to 1.04 |scale|. If a number is not finite, all become NaN; if all
/// magnitudes are below 2^-120, all become 0. The format is that of Q4_0 in ggml, with a bf16 scale.
struct Int4 {
  static constexpr Index kNumbers = 32;  ///< numbers of a block

  std::array<std::uint8_t, 16> digits{};  ///< byte i: number i in the lower half, number i + 16 in the upper half
  Eigen::bfloat16 scale{};  ///< of all numbers; negative if the largest magnitude is that of a positive one

  Int4() = default;
  /// Converts 32 numbers.
  explicit Int4(const float* numbers);

  /// Digit i, in 0 .. 15.
  int digit(Index i) const { return digits[static_cast<std::size_t>(i % 16)] >> (i / 16 * 4) & 15; }
  /// Number i.
  float operator[](Index i) const { return static_cast<float>(digit(i) - 8) * static_cast<float>(scale); }
};

/// Like Int4, with a zero point, 5 bits per number: number i is digit(i) * scale + zero. Its 16 values cover the range
/// from the smallest number to the largest, with errors of at most scale / 2. This suits numbers that have a part in
/// common. If one is not finite, all become NaN. If they range over more than 15 * 2^124, the upper ones are too small.
struct Int4Asymmetric {
  static constexpr Index kNumbers = 32;  ///< numbers of a block

  std::array<std::uint8_t, 16> digits{};  ///< as in Int4
  Eigen::bfloat16 scale{};                ///< the distance of neighbouring values
  Eigen::bfloat16 zero{};                 ///< the value of digit 0

  Int4Asymmetric() = default;
  /// Converts 32 numbers.
  explicit Int4Asymmetric(const float* numbers);

  /// Digit i, in 0 .. 15.
  int digit(Index i) const { return digits[static_cast<std::size_t>(i % 16)] >> (i / 16 * 4) & 15; }
  /// Number i.
  float operator[](Index i) const {
    return static_cast<float>(digit(i)) * static_cast<float>(scale) + static_cast<float>(zero);
  }
};

namespace detail {
/// Sets the 32 digits to (numbers - zero) / scale, rounded to nearest.
inline void set_digits(std::array<std::uint8_t, 16>& digits, const float* numbers, float zero, float scale) {
  const float inverse = 2 / scale;
  // The difference of halves cannot overflow.
  const auto digit = [&](std::size_t i) {
    return static_cast<unsigned>(std::clamp((numbers[i] / 2 - zero / 2) * inverse + 0.5f, 0.0f, 15.0f));
  };
  for (std::size_t i = 0; i < 16; ++i) digits[i] = static_cast<std::uint8_t>(digit(i) | digit(i + 16) << 4);
}
/// Whether all numbers are finite, and the smallest and the largest.
struct Extent {
  bool finite = true;
  float least, most;

  explicit Extent(const float* numbers) : least(numbers[0]), most(numbers[0]) {
    for (Index i = 0; i < Int4::kNumbers; ++i) {
      finite &= std::isfinite(numbers[i]);
      least = std::min(least, numbers[i]);
      most = std::max(most, numbers[i]);
    }
  }
};
}  // namespace detail

inline Int4::Int4(const float* numbers) {
  const detail::Extent of(numbers);
  const float largest = -of.least > of.most ? of.least : of.most;
  if (!of.finite) {
    scale = std::numeric_limits<Eigen::bfloat16>::quiet_NaN();
  } else if (std::abs(largest) >= 0x1p-120f) {  // the inverse of a smaller scale overflows
    constexpr float kMost = 0x1.fep124f;        // times 8 is the largest bf16
    scale = static_cast<Eigen::bfloat16>(std::clamp(largest / -8, -kMost, kMost));
    detail::set_digits(digits, numbers, -8 * static_cast<float>(scale), static_cast<float>(scale));
  }
}

inline Int4Asymmetric::Int4Asymmetric(const float* numbers) {
  const detail::Extent of(numbers);
  if (!of.finite) {
    scale = std::numeric_limits<Eigen::bfloat16>::quiet_NaN();
    return;
  }
  // Rounded down to bf16, so that no number is below the first of the 16 values (or barely, near the largest float).
  constexpr float kLargest = 0x1.fep127f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(std::max(of.least, -kLargest));
  const std::uint32_t down = (bits >> 31 ? bits + 0xffffu : bits) >> 16;
  zero = Eigen::numext::bit_cast<Eigen::bfloat16>(static_cast<std::uint16_t>(down));
  const float step = std::min(of.most / 15 - static_cast<float>(zero) / 15, 0x1p124f);
  if (step < 0x1p-120f) return;  // the inverse would overflow
  scale = static_cast<Eigen::bfloat16>(step);
  detail::set_digits(digits, numbers, static_cast<float>(zero), static_cast<float>(scale));
}

}  // namespace attn
