// Random numbers. bits(), uniform() and below() are the same on every platform, which the distributions of the standard
// library are not. normal() uses a logarithm and a cosine, whose last bits depend on the platform.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace nn {

/// SplitMix64 (Steele, Lea & Flood 2014). Its state is one number, which a checkpoint stores.
class Random {
 public:
  explicit Random(std::uint64_t state) : state_(state) {}

  std::uint64_t state() const { return state_; }

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  /// Returns a number in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// Returns one of 0 … count - 1. (Their probabilities differ by less than count / 2^53.)
  std::int64_t below(std::int64_t count) { return static_cast<std::int64_t>(uniform() * static_cast<double>(count)); }

  /// Returns a normally distributed number of mean 0 and variance 1 (Box & Muller 1958).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace nn
