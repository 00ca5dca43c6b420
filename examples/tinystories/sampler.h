// Chooses the next token.
#pragma once

#include <cstdint>
#include <random>
#include <span>

#include <Eigen/Core>

namespace tinystories {

using Index = Eigen::Index;

struct SamplerOptions {
  double temperature = 1;  // logits are divided by it; 0: the best logit always wins, of equal ones the first
  double top_p = 0.9;      // the likeliest tokens that have so much probability together are drawn from; 0 or 1: all
  std::uint64_t seed = 0;
};

/// Draws from softmax(logits / temperature), cut off behind its nucleus (Holtzman et al. 2020, section 3.1). The same
/// seed and logits draw the same tokens on every platform, but for the last bits of its exp().
class Sampler {
 public:
  /// @throws std::invalid_argument for a temperature that is negative or not finite, or a top_p outside 0..1.
  explicit Sampler(const SamplerOptions& options);

  /// @param logits  one for each token, at least one.
  /// @throws std::runtime_error if they are not all finite: the network overflows.
  Index operator()(std::span<const float> logits);

 private:
  double uniform();

  SamplerOptions options_;
  std::mt19937_64 engine_;
};

}  // namespace tinystories
