// What stands between the two linear layers of a feed-forward network.
#pragma once

#include "tensor.h"

namespace nn {

enum class Activation {
  relu,
  gelu,    ///< by tanh, PyTorch's GELU(approximate="tanh") (Hendrycks & Gimpel 2016)
  swiglu,  ///< silu(a) * b of the first and the second half of the features (Shazeer 2020)
};

/// How many features the activation takes to return `features`.
inline Index inputs_of(Activation activation, Index features) {
  return activation == Activation::swiglu ? 2 * features : features;
}

template <class T>
States<T> activate(Activation activation, const States<T>& x);

/// The gradient with respect to x, given that with respect to activate(x).
template <class T>
States<T> activation_gradient(Activation activation, const States<T>& x, const States<T>& grad);

}  // namespace nn
