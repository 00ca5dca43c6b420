// What a training run is told.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpt.h"

namespace train_gpt {

using nn::Index;

/// All that decides a run's numbers, and so all that a checkpoint keeps of a run beside its state. The defaults are for
/// a text of a few KiB and a few seconds.
struct Options {
  nn::GptConfig model{
      .context = 64, .layers = 2, .heads = 4, .features = 64, .dropout = 0.1};  ///< tokens: from the text
  Index batch = 12;
  Index steps = 600;
  Index warm_up = 20;
  double learning_rate = 1e-2;  ///< the highest; it falls to a tenth. Small models learn fast
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.99;
  double clip = 1;               ///< the most that the norm of all gradients may be
  Index validation_every = 100;  ///< steps; 0: never
  Index sample_every = 100;      ///< steps; 0: never
  std::uint64_t seed = 1;
};

/// The preset "small", which has the defaults, or "shakespeare". @throws std::invalid_argument for another name.
Options preset(const std::string& name);

/// The flag of an option: "--learning-rate" for "learning_rate".
std::string flag_of(const std::string& key);

/// Checks the options. `name` gives the name of an option that messages use, which depends on where it comes from.
/// @throws std::invalid_argument if no run can be made of these numbers.
void check(const Options& options, const std::function<std::string(const std::string& key)>& name = flag_of);

}  // namespace train_gpt
