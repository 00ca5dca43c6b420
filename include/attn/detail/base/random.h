// Random numbers that are the same on every platform.
#pragma once

#include <cstdint>

namespace attn::detail {

/// The `counter`-th number of the sequence that belongs to `seed`: SplitMix64 (Steele, Lea & Flood 2014, "Fast
/// splittable pseudorandom number generators"). Stateless, so that any element can be drawn alone and in any order.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd: the steps visit every state once
  std::uint64_t z = seed + (counter + 1) * kGolden;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;  // the paper's multipliers and shifts (Stafford's variant 13)
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Uniform in [-1, 1), a multiple of 2^-52. Every operation is exact, so neither the processor nor a compiler that
/// contracts products changes a bit. The standard library's distributions differ between implementations.
constexpr double random_symmetric(std::uint64_t seed, std::uint64_t counter) {
  constexpr double kUnit = 1.0 / 4503599627370496.0;  // 2^-52: the 53 upper bits fill a double
  return static_cast<double>(random_bits(seed, counter) >> 11) * kUnit - 1.0;
}

}  // namespace attn::detail
