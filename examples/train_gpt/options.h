// Options of a training run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpt.h"

namespace train_gpt {

using nn::Index;

/// All options that determine a run's results; a checkpoint stores these and the run's state. The defaults suit a text
/// of a few KiB and a few seconds.
struct Options {
  nn::GptConfig model{
      .context = 64, .layers = 2, .heads = 4, .features = 64, .dropout = 0.1};  ///< the text determines tokens
  Index batch = 12;
  Index steps = 600;
  Index warm_up = 20;
  double learning_rate = 1e-2;  ///< peak; decays to a tenth of it. Small models tolerate high rates
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.99;
  double clip = 1;               ///< limit on the norm of all gradients
  Index validation_every = 100;  ///< steps; 0: never
  Index sample_every = 100;      ///< steps; 0: never
  std::uint64_t seed = 1;
};

/// Returns the preset "small", which has the defaults, or "shakespeare". @throws std::invalid_argument for another
/// name.
Options preset(const std::string& name);

/// Returns the flag of an option: "--learning-rate" for "learning_rate".
std::string flag_of(const std::string& key);

/// Checks the options. `name` returns an option's name for messages, which depends on whether it comes from a flag or a
/// file.
/// @throws std::invalid_argument if an option is out of range.
void check(const Options& options, const std::function<std::string(const std::string& key)>& name = flag_of);

}  // namespace train_gpt
