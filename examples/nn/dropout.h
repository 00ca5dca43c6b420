// The dropout layer.
#pragma once

#include "tensor.h"

namespace nn {

/// Sets each element to 0 with the given probability in training, and divides the others by the probability of being
/// kept, which preserves the mean (Srivastava et al. 2014). Which elements are dropped depends only on seed and step.
template <class T>
class Dropout {
 public:
  /// @throws std::invalid_argument unless 0 <= rate < 1.
  Dropout(double rate, std::uint64_t seed);

  /// Drops elements of x in place, different ones at each call.
  void forward(States<T>& x);
  void backward(States<T>& grad) const;

  /// Declares that the next sequences belong to a larger batch, where they start at index `sequence`, so that the same
  /// elements are dropped as in that batch.
  void set_first(Index sequence) { first_ = sequence; }

  /// Sets the number of calls of forward() so far: one per step, which a checkpoint stores.
  void set_calls(std::uint64_t calls) { calls_ = calls; }

 private:
  void apply(States<T>& x) const;

  double rate_;
  Index first_ = 0;
  std::uint64_t seed_, calls_ = 0;
};

}  // namespace nn
