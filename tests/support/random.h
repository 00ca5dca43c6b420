// Random numbers for tests that are the same on every platform: the standard's engines are portable, its distributions
// are not.
#pragma once

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "attn/tensor.h"

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

/// A tensor with random elements in [-spread, spread).
template <class T, int Rank = 4>
Tensor<T, Rank> drawn(const Shape<Rank>& shape, Random& random, double spread = 2) {
  auto t = Tensor<T, Rank>::uninitialized(shape);
  for (Index i = 0; i < t.size(); ++i) {
    const double x = random.uniform(-spread, spread);
    if constexpr (std::is_floating_point_v<T>)
      t.data()[i] = static_cast<T>(x);
    else  // 16-bit floats convert from float
      t.data()[i] = static_cast<T>(static_cast<float>(x));
  }
  return t;
}
template <class T, int Rank = 4>
Tensor<T, Rank> drawn(const Shape<Rank>& shape, std::uint64_t seed, double spread = 2) {
  Random random(seed);
  return drawn<T, Rank>(shape, random, spread);
}

}  // namespace attn::test
