// The initial parameters of a GPT.
#pragma once

#include <cmath>

#include "parameter.h"
#include "random.h"

namespace nn {

/// Standard deviation of GPT-2's initial values (Radford et al. 2019).
inline constexpr double kGptDeviation = 0.02;

/// Draws the parameters of a stack of layers as GPT-2 does: normal weights, biases 0. Two parts of each layer add to
/// the states, whose variance would grow with the number of layers. The output weights of these parts are therefore
/// smaller. Norms stay unchanged.
template <class T, class Stack>
void draw_as_gpt2(Stack& stack, Index layers, Random& random) {
  const double added = kGptDeviation / std::sqrt(2 * static_cast<double>(layers));
  stack.visit("", [&](const Parameter<T>& p) {
    if (p.name.find("norm") != std::string::npos) return;
    const bool adds = p.name.ends_with("out_proj.weight") || p.name.ends_with("linear2.weight");
    const double deviation = p.shape.size() == 1 ? 0 : adds ? added : kGptDeviation;
    for (T& x : p.values) x = static_cast<T>(deviation * random.normal());
  });
}

}  // namespace nn
