// The activation between the two linear layers of a feed-forward network.
#pragma once

#include "tensor.h"

namespace nn {

enum class ActivationKind {
  relu,
  gelu,    ///< tanh approximation, PyTorch's GELU(approximate="tanh") (Hendrycks & Gimpel 2016)
  swiglu,  ///< silu(a) * b, where a and b are the two halves of the features (Shazeer 2020)
};

/// Number of input features that give `features` outputs.
inline Index inputs_of(ActivationKind kind, Index features) {
  return kind == ActivationKind::swiglu ? 2 * features : features;
}

/// An activation, a layer without parameters.
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
  States<T> inner_;  ///< values that need an exponential to compute: the GELU's tanh, or SwiGLU's sigmoid
};

}  // namespace nn
