// Gradients of layers against central differences, in double.
#pragma once

#include <functional>
#include <span>

#include "nn_numbers.h"

namespace nn::test {

/// The derivative of loss() with respect to x by the fourth-order central difference.
template <class Loss>
double central_difference(double& x, const Loss& loss) {
  constexpr double kStep = 1e-4;
  const double before = x;
  const auto at = [&](double steps) {
    x = before + steps * kStep;
    return loss();
  };
  const double derivative = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
  x = before;
  return derivative;
}

/// Allowed difference between a gradient and the central difference, relative to 1 plus the tensor's largest gradient.
/// The central difference has a truncation error of step^4 / 30 times the fifth derivative, about 3e-18, and a rounding
/// error of that of the loss (about 10, a few dozen roundings) divided by the step, about 2e-11. A missing term causes
/// an error of at least a thousandth.
constexpr double kTolerance = 1e-8;

/// Checks up to kEntries random elements of a tensor, and the one with the largest gradient.
template <class Loss>
void expect_derivatives(const std::string& name, std::span<double> values, std::span<const double> gradient,
                        Random& random, const Loss& loss) {
  constexpr std::size_t kEntries = 10;
  ASSERT_EQ(values.size(), gradient.size()) << name;
  ASSERT_FALSE(values.empty()) << name;
  std::vector<std::size_t> entries;
  std::size_t largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(std::abs(gradient[i]) <= std::abs(gradient[largest]))) largest = i;
  entries.push_back(largest);
  for (std::size_t i = 0; i < std::min(kEntries, values.size()); ++i)
    entries.push_back(values.size() <= kEntries ? i : static_cast<std::size_t>(random.below(std::ssize(values))));
  EXPECT_GT(std::abs(gradient[largest]), 1e-3) << name << ": a gradient of zeros would test nothing";
  for (const std::size_t i : entries)
    ASSERT_NEAR(gradient[i], central_difference(values[i], loss), kTolerance * (1 + std::abs(gradient[largest])))
        << name << ", element " << i;
}

/// An input that is also differentiated, and the location of its gradient.
struct Input {
  std::string name;
  States<double>* values;
  const States<double>* gradient;
};

struct NoParameters {
  void visit(const std::string&, const Visitor<double>&) {}
};

/// Checks the gradients of the inputs and of every parameter, for the loss sum(direction * forward()).
/// backward(direction) writes those of the inputs to the locations in `inputs`.
template <class Model>
void expect_gradients(Model& model, const std::vector<Input>& inputs, const std::function<States<double>()>& forward,
                      const std::function<void(const States<double>&)>& backward) {
  Random random(20240607);
  States<double> out = forward();
  const States<double> direction = normal_states<double>(out.shape(), random);
  backward(direction);  // allocates the gradients of all parameters
  zero_gradients<double>(model);
  forward();
  backward(direction);
  const auto loss = [&] { return rows_of(direction).cwiseProduct(rows_of(std::as_const(out = forward()))).sum(); };
  for (const Input& input : inputs) {
    const auto size = static_cast<std::size_t>(input.values->size());
    expect_derivatives(input.name, {input.values->data(), size},
                       {input.gradient->data(), static_cast<std::size_t>(input.gradient->size())}, random, loss);
  }
  std::vector<std::vector<double>> once;
  for (const Parameter<double>& p : parameters_of<double>(model)) {
    once.emplace_back(p.gradient.begin(), p.gradient.end());
    expect_derivatives(p.name, p.values, p.gradient, random, loss);
  }
  // A second call accumulates the same gradients again.
  forward();
  backward(direction);
  std::size_t tensor = 0;
  for (const Parameter<double>& p : parameters_of<double>(model)) {
    const std::vector<double>& first = once[tensor++];
    for (std::size_t i = 0; i < first.size(); ++i)
      ASSERT_NEAR(p.gradient[i], 2 * first[i], 1e-12 * (1 + std::abs(first[i]))) << p.name << ", added twice";
  }
}

/// Checks a layer whose only input is states, with random parameters.
template <class Layer>
void expect_layer_gradients(Layer layer, const attn::Shape<3>& shape = {2, 5, 6}) {
  Random random(3);
  draw_parameters<double>(layer, 4);
  States<double> x = normal_states<double>(shape, random), grad_x;
  expect_gradients(
      layer, {{"x", &x, &grad_x}}, [&] { return layer.forward(x); },
      [&](const States<double>& grad) { grad_x = layer.backward(grad); });
}

}  // namespace nn::test
