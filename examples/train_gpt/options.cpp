#include "options.h"

#include <sstream>
#include <stdexcept>

namespace train_gpt {

namespace {

template <class T>
void in_range(const char* name, T value, T lowest, T highest) {
  if (value >= lowest && value <= highest) return;  // not so for NaN
  std::ostringstream message;
  message << name << " is " << value << ", it must be in " << lowest << ".." << highest;
  throw std::invalid_argument(message.str());
}

}  // namespace

Options preset(const std::string& name) {
  if (name == "small") return {};
  if (name != "shakespeare") throw std::invalid_argument("there is no preset " + name);
  // nanoGPT's configuration for a CPU (config/train_shakespeare_char.py with the sizes of its README), but for the
  // learning rate: the same 2,000 steps learn more with three times its 1e-3.
  return {.model = {.context = 64, .layers = 4, .heads = 4, .features = 128},
          .steps = 2000,
          .warm_up = 100,
          .learning_rate = 3e-3,
          .validation_every = 250,
          .sample_every = 500};
}

void check(const Options& o) {
  constexpr Index kMostSteps = 10'000'000, kMostFeatures = 65'536, kMostTokens = 1 << 20;
  in_range<Index>("--layers", o.model.layers, 1, 1000);
  in_range<Index>("--features", o.model.features, 1, kMostFeatures);
  in_range<Index>("--heads", o.model.heads, 1, o.model.features);
  if (o.model.features % o.model.heads != 0)
    throw std::invalid_argument("--features " + std::to_string(o.model.features) + " is no multiple of --heads " +
                                std::to_string(o.model.heads));
  in_range<Index>("--context", o.model.context, 2, kMostTokens);
  in_range<Index>("--batch", o.batch, 1, kMostTokens / o.model.context);
  in_range<double>("--dropout", o.model.dropout, 0, 0.95);
  in_range<Index>("--steps", o.steps, 1, kMostSteps);
  in_range<Index>("--warm-up", o.warm_up, 0, kMostSteps);
  in_range<double>("--learning-rate", o.learning_rate, 0, 1);
  in_range<double>("--weight-decay", o.weight_decay, 0, 10);
  in_range<double>("--beta1", o.beta1, 0, 0.99999);
  in_range<double>("--beta2", o.beta2, 0, 0.99999);
  in_range<double>("--clip", o.clip, 1e-6, 1e6);
  in_range<Index>("--validation-every", o.validation_every, 0, kMostSteps);
  in_range<Index>("--sample-every", o.sample_every, 0, kMostSteps);
}

}  // namespace train_gpt
