// The numbers that a model learns.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor.h"

namespace nn {

/// A parameter of a model, as optimisers and checkpoints see it: a view. (PyTorch's nn.Parameter owns its numbers; here
/// Learned does.) Spans are valid as long as the model is not moved.
template <class T>
struct Parameter {
  std::string name;  ///< as PyTorch has it: "layers.0.linear1.weight"
  std::vector<Index> shape;
  std::span<T> values;    ///< row-major
  std::span<T> gradient;  ///< of equal size; backward() adds to it. Attention has none before its first backward()
};

/// What each layer's visit() calls for each of its parameters, always in the same order.
template <class T>
using Visitor = std::function<void(const Parameter<T>&)>;

/// A parameter that a layer owns.
template <class T, int Rank>
struct Learned {
  attn::Tensor<T, Rank> values, gradient;

  Learned() = default;
  explicit Learned(const attn::Shape<Rank>& shape) : values(shape), gradient(shape) {}

  void visit(const std::string& name, const Visitor<T>& visitor) {
    if (values.size() == 0) return;  // a layer without biases, for example
    const auto n = static_cast<std::size_t>(values.size());
    visitor({name, {values.shape().begin(), values.shape().end()}, {values.data(), n}, {gradient.data(), n}});
  }
};

/// All parameters of a model: anything with visit(prefix, visitor).
template <class T, class Model>
std::vector<Parameter<T>> parameters_of(Model& model) {
  std::vector<Parameter<T>> all;
  model.visit("", [&](const Parameter<T>& p) { all.push_back(p); });
  return all;
}

/// How many numbers a model learns.
template <class T, class Model>
Index count_parameters(Model& model) {
  Index count = 0;
  for (const Parameter<T>& p : parameters_of<T>(model)) count += static_cast<Index>(p.values.size());
  return count;
}

/// Sets all gradients to 0, as before each step.
template <class T, class Model>
void zero_gradients(Model& model) {
  for (const Parameter<T>& p : parameters_of<T>(model)) std::fill(p.gradient.begin(), p.gradient.end(), T(0));
}

}  // namespace nn
