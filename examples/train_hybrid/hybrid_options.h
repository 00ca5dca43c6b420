// Options of a training run, and their limits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hybrid.h"
#include "options.h"

namespace train_hybrid {

using nn::Index;

/// The defaults suit the plays of Shakespeare and less than two minutes on two cores.
struct Options {
  nn::HybridConfig model{.blocks = 1, .features = 128, .heads = 4, .kv_heads = 2, .head_dim = 32};  ///< without tokens
  Index context = 128;  ///< characters per sequence in training
  Index batch = 8;      ///< sequences per step
  Index steps = 500;
  Index warm_up = 50;
  double learning_rate = 3e-3;  ///< highest; falls to a tenth of it
  double weight_decay = 0.1;
  Index validation_every = 100;  ///< steps; 0: only before and after the run
  std::uint64_t seed = 1;
};

/// Calls f(name, size, smallest, largest, description) for each size of a model except its number of tokens, for the
/// command line and for model files.
template <class Config, class F>
void for_each_size(Config& c, const F& f) {
  f("blocks", c.blocks, 1, 100, "Blocks of three gated DeltaNets and one attention layer");
  f("features", c.features, 1, 16384, "Features per character");
  f("heads", c.heads, 1, 256, "Heads of a DeltaNet, and of queries");
  f("kv_heads", c.kv_heads, 1, 256, "Heads of keys and values in attention, a divisor of --heads");
  f("head_dim", c.head_dim, 2, 1024, "Features of a head, an even number");
  f("conv_width", c.conv_width, 2, 8, "Characters that the convolution of a DeltaNet sees");
}

/// Checks what limits of single sizes cannot. `name` returns a size's name for messages, as in train_gpt.
/// @throws std::invalid_argument
void check(const nn::HybridConfig& config,
           const std::function<std::string(const std::string& key)>& name = train_gpt::flag_of);

/// Returns about how many parameters a model has, from its matrices.
double matrix_elements(const nn::HybridConfig& config);

}  // namespace train_hybrid
