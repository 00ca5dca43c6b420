// The parameters of a model.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor.h"
#include "threads.h"

namespace nn {

/// A view of a parameter, for optimisers and checkpoints. (PyTorch's nn.Parameter owns its values; here Learned does.)
/// Spans are valid as long as the model is not moved.
template <class T>
struct Parameter {
  std::string name;  ///< PyTorch's name: "layers.0.linear1.weight"
  std::vector<Index> shape;
  std::span<T> values;    ///< row-major
  std::span<T> gradient;  ///< same size; backward() adds to it. Attention has none before its first backward()
};

/// Function that each layer's visit() calls for each of its parameters, always in the same order.
template <class T>
using Visitor = std::function<void(const Parameter<T>&)>;

/// A parameter that a layer owns, with its gradient.
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

/// Returns all parameters of a model: of any type with visit(prefix, visitor).
template <class T, class Model>
std::vector<Parameter<T>> parameters_of(Model& model) {
  std::vector<Parameter<T>> all;
  model.visit("", [&](const Parameter<T>& p) { all.push_back(p); });
  return all;
}

/// Returns the number of values that a model learns.
template <class T, class Model>
Index count_parameters(Model& model) {
  Index count = 0;
  for (const Parameter<T>& p : parameters_of<T>(model)) count += static_cast<Index>(p.values.size());
  return count;
}

/// A range of values of one parameter.
struct Block {
  std::size_t parameter;
  Index first, last;
};

/// Returns the blocks of all parameters that have a gradient. Blocks distribute work over threads; most parameters are
/// too small to be split.
template <class T>
std::vector<Block> blocks_of(const std::vector<Parameter<T>>& parameters) {
  constexpr Index kNumbers = 8192;
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto count = static_cast<Index>(parameters[i].gradient.size());
    for (Index first = 0; first < count; first += kNumbers)
      blocks.push_back({i, first, std::min(first + kNumbers, count)});
  }
  return blocks;
}

/// Calls f(index of a block) for all blocks, on all threads.
template <class F>
void for_all(const std::vector<Block>& blocks, const F& f) {
  constexpr double kNanoseconds = 8000;
  for_blocks(static_cast<Index>(blocks.size()), 1, kNanoseconds,
             [&](Index first, Index) { f(static_cast<std::size_t>(first)); });
}

/// Sets all gradients to 0, as needed before each step.
template <class T, class Model>
void zero_gradients(Model& model) {
  const std::vector<Parameter<T>> parameters = parameters_of<T>(model);
  const std::vector<Block> blocks = blocks_of(parameters);
  for_all(blocks, [&](std::size_t i) {
    const auto& [parameter, first, last] = blocks[i];
    std::fill_n(parameters[parameter].gradient.data() + first, last - first, T(0));
  });
}

}  // namespace nn
