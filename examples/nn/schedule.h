// The schedule of the learning rate.
#pragma once

#include <cmath>
#include <numbers>

#include "tensor.h"

namespace nn {

/// Learning rate of a step: rises linearly over `warm_up` steps, then falls as a cosine from `highest` to `lowest` at
/// step `decay_steps`, and stays there (Loshchilov & Hutter 2017). Steps count from 0.
struct CosineSchedule {
  double highest = 1e-3, lowest = 1e-4;
  Index warm_up = 100, decay_steps = 1000;

  double operator()(Index step) const {
    if (step < warm_up) return highest * static_cast<double>(step + 1) / static_cast<double>(warm_up + 1);
    if (step >= decay_steps) return lowest;
    const double done = static_cast<double>(step - warm_up) / static_cast<double>(decay_steps - warm_up);
    return lowest + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (highest - lowest);
  }
};

}  // namespace nn
