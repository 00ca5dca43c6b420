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

  /// How often forward() was called: once in each step, which a checkpoint counts.
  void set_calls(std::uint64_t calls) { calls_ = calls; }

 private:
  void apply(States<T>& x) const;

  double rate_;
  std::uint64_t seed_, calls_ = 0;
};

}  // namespace nn
