// The loss of guessing the next token.
#pragma once

#include "tensor.h"

namespace nn {

/// The mean of -log softmax(logits)[target] over all tokens except those whose target is kIgnored: nn.CrossEntropyLoss
/// (whose ignore_index is -100 by default). With label smoothing s, a target's probability is 1 - s, and s is shared
/// out over all tokens (Szegedy et al. 2016).
template <class T>
class CrossEntropy {
 public:
  static constexpr std::int32_t kIgnored = -1;  ///< a target that does not count, padding: PyTorch's ignore_index

  explicit CrossEntropy(double label_smoothing = 0) : label_smoothing_(label_smoothing) {}

  /// The loss of logits (batch, len, tokens) and targets (batch, len); 0 if no target counts.
  /// @throws std::out_of_range for another target that is no token, std::invalid_argument if sizes disagree.
  double operator()(const States<T>& logits, const Tokens& targets) const;
  double forward(States<T> logits, const Tokens& targets);
  /// The gradient with respect to the logits. Call it once after each forward().
  States<T> backward();

 private:
  double loss(const States<T>& logits, const Tokens& targets, States<T>* gradient) const;

  double label_smoothing_;
  States<T> gradient_;
};

}  // namespace nn
