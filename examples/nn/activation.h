// What stands between the two linear layers of a feed-forward network.
#pragma once

#include "tensor.h"

namespace nn {

enum class ActivationKind {
  relu,
  gelu,    ///< by tanh, PyTorch's GELU(approximate="tanh") (Hendrycks & Gimpel 2016)
  swiglu,  ///< silu(a) * b of the first and the second half of the features (Shazeer 2020)
};

/// How many features the activation takes to return `features`.
inline Index inputs_of(ActivationKind kind, Index features) {
  return kind == ActivationKind::swiglu ? 2 * features : features;
}

/// A layer without parameters.
template <class T>
class Activation {
 public:
  explicit Activation(ActivationKind kind) : kind_(kind) {}

  States<T> operator()(const States<T>& x) const;
  States<T> forward(States<T> x);
  States<T> backward(const States<T>& grad) const;

 private:
  States<T> apply(const States<T>& x, States<T>* inner) const;

  ActivationKind kind_;
  States<T> x_;
  States<T> inner_;  ///< what took an exponential: the GELU's tanh, or the sigmoid of SwiGLU
};

}  // namespace nn
