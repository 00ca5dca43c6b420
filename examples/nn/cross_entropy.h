// The loss of predicting the next token.
#pragma once

#include "tensor.h"

namespace nn {

/// Mean of -log softmax(logits)[target] over all tokens whose target is not kIgnored: nn.CrossEntropyLoss (whose
/// ignore_index is -100 by default). With label smoothing s, probability s is distributed evenly over all tokens, and
/// the target gets the remaining 1 - s in addition (Szegedy et al. 2016).
template <class T>
class CrossEntropy {
 public:
  static constexpr std::int32_t kIgnored = -1;  ///< an ignored target, such as padding: PyTorch's ignore_index

  explicit CrossEntropy(double label_smoothing = 0) : label_smoothing_(label_smoothing) {}

  /// Returns the loss of logits (batch, len, tokens) for targets (batch, len); 0 if all targets are ignored.
  /// @throws std::out_of_range for a target that is neither a token nor kIgnored, std::invalid_argument if sizes
  /// disagree.
  double operator()(const States<T>& logits, const Tokens& targets) const;
  double forward(States<T> logits, const Tokens& targets);
  /// Returns the gradient with respect to the logits. Call it once after each forward().
  States<T> backward();

 private:
  double loss(const States<T>& logits, const Tokens& targets, States<T>* gradient) const;

  double label_smoothing_;
  States<T> gradient_;
};

}  // namespace nn
