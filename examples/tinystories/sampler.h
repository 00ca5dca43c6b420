// Chooses the next token.
#pragma once

#include <cstdint>
#include <random>
#include <span>

#include <Eigen/Core>

namespace tinystories {

using Index = Eigen::Index;

struct SamplerOptions {
  double temperature = 1;  // divides the logits; 0: always the largest logit, the first of equal ones
  double top_p = 0.9;      // draws only from the likeliest tokens with this total probability; 0 or 1: from all
  std::uint64_t seed = 0;
};

/// Draws from softmax(logits / temperature), restricted to its nucleus (Holtzman et al. 2020, section 3.1). The same
/// seed and logits give the same tokens on every platform, up to the last bits of its exp().
class Sampler {
 public:
  /// @throws std::invalid_argument for a temperature that is negative or not finite, or a top_p outside 0..1.
  explicit Sampler(const SamplerOptions& options);

  /// Returns the chosen token.
  /// @param logits  one per token, at least one.
  /// @throws std::runtime_error if they are not all finite: the network overflows.
  Index operator()(std::span<const float> logits);

 private:
  double uniform();

  SamplerOptions options_;
  std::mt19937_64 engine_;
};

}  // namespace tinystories
