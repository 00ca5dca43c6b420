// Dropout.
#pragma once

#include "tensor.h"

namespace nn {

/// Sets each number to 0 with the given probability in training, and divides the others by what is left, so that the
/// mean stays (Srivastava et al. 2014). Which are dropped depends on seed and step alone.
template <class T>
class Dropout {
 public:
  /// @throws std::invalid_argument unless 0 <= rate < 1.
  Dropout(double rate, std::uint64_t seed);

  /// In place. Draws anew at each call.
  void forward(States<T>& x);
  void backward(States<T>& grad) const;

  /// The sequences that come are those from `sequence` on of a larger batch, in which they would lose the same numbers.
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
