// The random numbers of one case. A case depends only on the seed and its number, on every platform.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "support/random.h"

namespace fuzz {

using attn::Index;

/// The order of two calls in one argument list is unspecified: draw into variables, or inside braces.
class Random : public attn::test::Random {
 public:
  Random(std::uint64_t seed, std::uint64_t number)
      : attn::test::Random(seed * 0x9e3779b97f4a7c15u ^ number * 0xd1342543de82ef95u) {}

  /// first .. last, both included.
  Index from(Index first, Index last) { return integer(first, last); }
  bool percent(Index chance) { return from(0, 99) < chance; }
  /// Any double, not rounded to float.
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Nearly normal, with variance 1: the sum of four uniform values.
  double normal() {
    const std::uint64_t b = bits();
    const auto part = [b](int i) { return static_cast<double>((b >> (16 * i)) & 0xffff); };
    return (part(0) + part(1) + part(2) + part(3) - 2 * 65535) / (65536 * 0.57735);
  }
  template <class X>
  X of(std::initializer_list<X> some) {
    return *(some.begin() + from(0, static_cast<Index>(some.size()) - 1));
  }

  /// A length up to `most`, often at the edge of a tile of queries or keys.
  Index length(Index most) {
    const Index kind = from(0, 99);
    Index n;
    if (kind < 45)
      n = of<Index>({0,  1,  2,  3,  7,  8,  9,  12,  15,  16,  17,  23,  24,  25,  31,  32,  33,  47,  48,
                     49, 63, 64, 65, 95, 96, 97, 111, 112, 127, 128, 129, 144, 191, 192, 193, 255, 256, 257});
    else
      n = from(0, kind < 85 ? 40 : 300);
    return std::min(n, most);
  }
  /// A head_dim or v_dim, often at the edge of a register tile.
  Index features() {
    if (percent(35)) return from(1, 130);
    return of<Index>({1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16, 17, 20,  24,  31,  32,
                      33, 40, 48, 56, 63, 64, 65, 72, 80, 95, 96, 97, 112, 127, 128, 129});
  }
  std::vector<Index> lengths(const std::vector<Index>& most) {
    std::vector<Index> some;
    for (Index m : most) some.push_back(percent(20) ? m : from(0, m));
    return some;
  }
};

}  // namespace fuzz
