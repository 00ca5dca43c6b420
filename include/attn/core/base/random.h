// Counter-based random numbers that are the same on every platform.
#pragma once

#include <cstdint>

namespace attn::detail {

/// Returns number `counter` of the sequence that `seed` starts: SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable
/// pseudorandom number generators"). Stateless, so that any element can be drawn alone and in any order.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd: the steps visit every state once
  std::uint64_t z = seed + (counter + 1) * kGolden;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;  // the paper's multipliers and shifts (Stafford's variant 13)
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// Returns a uniform number in [-1, 1), a multiple of 2^-52. Every operation is exact, so no bit depends on the
/// processor, or on whether the compiler contracts the product and the sum to an FMA. The standard library's
/// distributions differ between implementations.
constexpr double random_symmetric(std::uint64_t seed, std::uint64_t counter) {
  constexpr double kUnit = 1.0 / 4503599627370496.0;  // 2^-52: the 53 upper bits fill a double
  return static_cast<double>(random_bits(seed, counter) >> 11) * kUnit - 1.0;
}

/// Threefry-4x32 with 13 rounds (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
/// section 4.2, which finds that 12 rounds pass all tests of BigCrush). Maps each counter of four words to four random
/// words. It needs no 64-bit products of 32-bit words, whose instructions differ between vector instruction sets; SSE2
/// has hardly any. `Words` is a 32-bit word, or a vector of them.
template <class Words>
class Threefry {
 public:
  [[gnu::always_inline]] explicit Threefry(const std::uint32_t* key)
      : k0_(key[0]), k1_(key[1]), k2_(key[2]), k3_(key[3]), k4_(0x1bd11bda ^ k0_ ^ k1_ ^ k2_ ^ k3_) {}

  /// Replaces the four words of the counter with random ones.
  [[gnu::always_inline]] void operator()(Words& a, Words& b, Words& c, Words& d) const {
    a += k0_, b += k1_, c += k2_, d += k3_;
    mix<10, 26>(a, b, c, d), mix<11, 21>(a, d, c, b), mix<13, 27>(a, b, c, d), mix<23, 5>(a, d, c, b);
    a += k1_, b += k2_, c += k3_, d += k4_ + 1;
    mix<6, 20>(a, b, c, d), mix<17, 11>(a, d, c, b), mix<25, 10>(a, b, c, d), mix<18, 20>(a, d, c, b);
    a += k2_, b += k3_, c += k4_, d += k0_ + 2;
    mix<10, 26>(a, b, c, d), mix<11, 21>(a, d, c, b), mix<13, 27>(a, b, c, d), mix<23, 5>(a, d, c, b);
    a += k3_, b += k4_, c += k0_, d += k1_ + 3;
    mix<6, 20>(a, b, c, d);
  }

 private:
  template <int kFirst, int kSecond>
  [[gnu::always_inline]] static void mix(Words& a, Words& b, Words& c, Words& d) {
    a += b;
    b = ((b << kFirst) | (b >> (32 - kFirst))) ^ a;
    c += d;
    d = ((d << kSecond) | (d >> (32 - kSecond))) ^ c;
  }

  std::uint32_t k0_, k1_, k2_, k3_, k4_;
};

}  // namespace attn::detail
