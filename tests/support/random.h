// Random numbers for tests that are the same on every platform: the standard's engines are portable, its distributions
// are not.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "attn/types.h"

namespace attn::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }

  /// An integer from low to high, both included.
  Index integer(Index low, Index high) {
    return low + static_cast<Index>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }

  /// A value in [low, high), rounded to float, so that it is the same in float, double and long double.
  double uniform(double low, double high) {
    const double unit = static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<double>(static_cast<float>(low + (high - low) * unit));
  }

  bool chance(double probability) { return uniform(0, 1) < probability; }

  template <class Container>
  const auto& pick(const Container& from) {
    return *(std::begin(from) + integer(0, static_cast<Index>(std::size(from)) - 1));
  }

  std::vector<double> values(Index count, double spread = 2) {
    std::vector<double> v(static_cast<std::size_t>(count));
    for (double& x : v) x = uniform(-spread, spread);
    return v;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace attn::test
