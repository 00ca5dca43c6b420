// A generator of random numbers that needs nothing but a counter.
#pragma once

#include <cstdint>

namespace attn::detail {
/// Threefry-4x32 with 13 rounds (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
/// section 4.2, which finds 12 rounds to pass all tests of BigCrush): each counter of four words has four random words
/// of its own. It needs no multiplication of 32 bits to 64, which vectors have in many forms and SSE2 hardly. `Words`
/// is a word of 32 bits, or a vector of them.
template <class Words>
class Threefry {
 public:
  [[gnu::always_inline]] explicit Threefry(const std::uint32_t* key)
      : k0_(key[0]), k1_(key[1]), k2_(key[2]), k3_(key[3]), k4_(0x1bd11bda ^ k0_ ^ k1_ ^ k2_ ^ k3_) {}

  /// The four words of the counter become random.
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
