// The linear layer.
#pragma once

#include "parameter.h"
#include "random.h"

namespace nn {

/// y = x * weightᵀ + bias, PyTorch's nn.Linear.
///
/// All layers here have three calls. operator() is for inference. forward() computes the same for training (with
/// dropout) and keeps the values that backward() needs. backward() takes the gradient of the loss with respect to the
/// result, adds to the gradients of the parameters, and returns the gradient with respect to the input. Each backward()
/// belongs to the last forward().
template <class T>
class Linear {
 public:
  /// Draws initial values as PyTorch does: uniform in ±1/sqrt(inputs).
  Linear(Index inputs, Index outputs, bool bias, Random& random);

  States<T> operator()(const States<T>& x) const;
  States<T> forward(States<T> x);
  States<T> backward(const States<T>& grad);

  /// Visits "weight" (outputs, inputs) and "bias" (outputs).
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  Learned<T, 2> weight_;
  Learned<T, 1> bias_;
  States<T> x_;
};

}  // namespace nn
