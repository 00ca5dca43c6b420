// Dropout.
#pragma once

#include "tensor.h"

namespace nn {

/// Sets each number to 0 with the given probability in training, and divides the others by the probability that is
/// left, so that the mean stays (Srivastava et al. 2014). Which numbers are dropped depends on seed and step alone.
template <class T>
class Dropout {
 public:
  /// @throws std::invalid_argument unless 0 <= rate < 1.
  Dropout(double rate, std::uint64_t seed);

  /// Drops numbers of x in place, and others at each call.
  void forward(States<T>& x);
  void backward(States<T>& grad) const;

  /// Says that the next sequences are those from `sequence` on of a larger batch, in which they would lose the same
  /// numbers.
  void set_first(Index sequence) { first_ = sequence; }

  /// How often forward() was called: once in each step, which a checkpoint counts.
  void set_calls(std::uint64_t calls) { calls_ = calls; }

 private:
  void apply(States<T>& x) const;

  double rate_;
  Index first_ = 0;
  std::uint64_t seed_, calls_ = 0;
};

}  // namespace nn
