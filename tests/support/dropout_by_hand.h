// The random words of dropout once more, in loops over the rounds; shares nothing with the library.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace attn::test {

using FourWords = std::array<std::uint32_t, 4>;

/// Threefry-4x32 of Salmon et al. 2011 with any number of rounds.
inline FourWords threefry_by_hand(FourWords x, const FourWords& key, int rounds) {
  constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};
  std::array<std::uint32_t, 5> keys{key[0], key[1], key[2], key[3], 0x1bd11bda};
  for (std::uint32_t k : key) keys[4] ^= k;
  const auto inject = [&](std::uint32_t n) {
    for (std::size_t i = 0; i < 4; ++i) x[i] += keys[(n + i) % 5];
    x[3] += n;
  };
  inject(0);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::uint32_t &a = x[2 * i], &b = x[(round % 2 == 0 ? 2 * i + 1 : 3 - 2 * i)];
      const int bits = kRotations[round % 8][i];
      a += b;
      b = static_cast<std::uint32_t>((std::uint64_t(b) << bits) | (std::uint64_t(b) >> (32 - bits))) ^ a;
    }
    if (round % 4 == 3) inject(static_cast<std::uint32_t>(round + 1) / 4);
  }
  return x;
}

/// The random word of a pair, which dropout(p, seed) drops if it is below p * 2^32.
inline std::uint32_t dropout_word(std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q,
                                  std::int64_t kv) {
  const auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x & 0xffffffff); };
  const auto high = [](std::int64_t x) { return static_cast<std::uint32_t>(x >> 32 & 0xffffffff); };
  const FourWords words = threefry_by_hand({low(kv / 4), high(kv / 4), low(q), high(q)},
                                           {static_cast<std::uint32_t>(seed % 0x100000000),
                                            static_cast<std::uint32_t>(seed / 0x100000000), low(batch), low(head)},
                                           13);
  return words[static_cast<std::size_t>(kv % 4)];
}

/// What dropout(p, seed) multiplies a weight by.
inline long double dropout_factor(double p, std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q,
                                  std::int64_t kv) {
  const long double words = std::round(p * 4294967296.0L);
  return dropout_word(seed, batch, head, q, kv) < words ? 0 : 1 / (1 - static_cast<long double>(p));
}

}  // namespace attn::test
