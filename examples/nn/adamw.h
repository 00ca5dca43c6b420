// The AdamW optimiser and gradient clipping.
#pragma once

#include "parameter.h"

namespace nn {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  /// Applied only to parameters of two dimensions; biases and norms, which have one, do not decay.
  double weight_decay = 0.01;
};

/// AdamW (Loshchilov & Hutter 2019), like torch.optim.AdamW, except for the choice of parameters that decay.
template <class T>
class AdamW {
 public:
  explicit AdamW(const AdamWConfig& config = {}) : config_(config) {}

  /// Takes one step. Pass all parameters of the model, in the same order each time; those without gradients stay
  /// unchanged.
  void step(const std::vector<Parameter<T>>& parameters, double learning_rate);

  Index steps() const { return steps_; }

  /// Calls visitor for the state that a checkpoint stores: the first and second moments of each parameter, named
  /// "m.<parameter>" and "v.<parameter>". Their gradients are empty. The number of steps is not among them: use steps()
  /// and set_steps().
  void visit_moments(const std::vector<Parameter<T>>& parameters, const Visitor<T>& visitor);
  void set_steps(Index steps) { steps_ = steps; }

 private:
  struct Moments {
    std::vector<T> m, v;
  };
  void fit(const std::vector<Parameter<T>>& parameters);

  AdamWConfig config_;
  std::vector<Moments> moments_;
  Index steps_ = 0;
};

/// Scales all gradients so that their norm is at most max_norm, and returns their norm before scaling. This is
/// torch.nn.utils.clip_grad_norm_ without the 1e-6 that PyTorch adds to the norm.
template <class T>
double clip_grad_norm(const std::vector<Parameter<T>>& parameters, double max_norm);

}  // namespace nn
