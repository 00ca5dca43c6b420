// Rotation frequencies of a Rope's pairs, and the checks of its configuration.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/core/base/check.h"
#include "attn/rope_config.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The frequencies of the pairs of a Rope. Keeps a reference to the configuration.
class RopeFrequencies {
 public:
  /// @throws std::invalid_argument for invalid sizes or values; the message contains them.
  explicit RopeFrequencies(const RopeConfig& config) : config_(config) { check(); }

  /// Returns the frequency of pair i, in radians per position. rotary_dim must have been set before.
  double of(Index i) const {
    const double dim = static_cast<double>(config_.rotary_dim), factor = config_.factor;
    const double plain = frequency(config_.base, i);
    switch (config_.scaling) {
      case RopeScaling::none:
      case RopeScaling::longrope:  // the constructor of Rope divides by the factors
        break;
      case RopeScaling::linear:
        return plain / factor;
      case RopeScaling::ntk:
        return with_base_times(factor, i);
      case RopeScaling::dynamic_ntk: {
        const double lengths = static_cast<double>(config_.length) / static_cast<double>(config_.trained_length);
        return lengths > 1 ? with_base_times(factor * lengths - (factor - 1), i) : plain;
      }
      case RopeScaling::yarn: {
        const double fast = rotating_pair(config_.beta_fast), slow = rotating_pair(config_.beta_slow);
        const double low = std::max(config_.round_borders ? std::floor(fast) : fast, 0.0),
                     high = std::min(config_.round_borders ? std::ceil(slow) : slow, dim - 1);
        const double divided = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
        return mixed(plain, divided);
      }
      case RopeScaling::llama3: {
        const double turns = static_cast<double>(config_.trained_length) * plain / (2 * std::numbers::pi);
        const double kept = (turns - config_.low_freq_factor) / (config_.high_freq_factor - config_.low_freq_factor);
        return mixed(plain, 1 - std::clamp(kept, 0.0, 1.0));
      }
    }
    return plain;
  }

 private:
  /// Increases the base so that the slowest pair rotates `factor` times as slowly. If there is only one pair, it is
  /// also the fastest, and keeps its frequency.
  double with_base_times(double factor, Index i) const {
    const double dim = static_cast<double>(config_.rotary_dim);
    return frequency(dim > 2 ? config_.base * std::pow(factor, dim / (dim - 2)) : config_.base, i);
  }
  double frequency(double base, Index i) const {
    return std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(config_.rotary_dim));
  }
  /// Interpolates from `plain` (`divided` = 0) to plain / factor (`divided` = 1).
  double mixed(double plain, double divided) const { return divided * plain / config_.factor + (1 - divided) * plain; }
  /// Returns the index, possibly fractional, of the pair that rotates `times` times over a training sequence.
  double rotating_pair(double times) const {
    const double dim = static_cast<double>(config_.rotary_dim), length = static_cast<double>(config_.trained_length);
    return dim * std::log(length / (times * 2 * std::numbers::pi)) / (2 * std::log(config_.base));
  }

  void check() const {
    const RopeConfig& c = config_;
    const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
    require(c.head_dim > 0, "Rope: head_dim must be positive, but is ", c.head_dim);
    const Index rotary = c.rotary_dim == 0 ? c.head_dim : c.rotary_dim;
    require(rotary > 0 && rotary <= c.head_dim && rotary % 2 == 0, "Rope: rotary_dim must be even and in 2..",
            c.head_dim, " (head_dim), but is ", rotary);
    constexpr Index kMost = Index(1) << 24;  // each pair has an entry in a table
    require(rotary <= kMost, "Rope: rotary_dim must be at most ", kMost, ", but is ", rotary);
    require(c.base > 1 && std::isfinite(c.base), "Rope: base must be finite and greater than 1, but is ", c.base);
    require(positive(c.factor), "Rope: factor must be positive and finite, but is ", c.factor);
    if (c.attention_factor) {
      require(positive(*c.attention_factor), "Rope: attention_factor must be positive and finite, but is ",
              *c.attention_factor);
      require(c.scaling == RopeScaling::yarn || c.scaling == RopeScaling::longrope, "Rope: attention_factor is ",
              *c.attention_factor, ", but only yarn and longrope use it");
    }
    const bool stretches = c.scaling == RopeScaling::linear || c.scaling == RopeScaling::ntk;
    if (c.scaling == RopeScaling::none || stretches) return;
    require(c.trained_length > (c.scaling == RopeScaling::longrope ? 1 : 0), "Rope: trained_length is ",
            c.trained_length, "; this scaling needs the length of the sequences in training");
    require(c.scaling != RopeScaling::dynamic_ntk || (c.length >= 0 && c.factor >= 1), "Rope: length is ", c.length,
            " and factor is ", c.factor, "; dynamic_ntk needs a length of at least 0 and a factor of at least 1");
    if (c.scaling == RopeScaling::yarn)
      require(positive(c.beta_slow) && positive(c.beta_fast) && c.beta_slow <= c.beta_fast, "Rope: beta_slow is ",
              c.beta_slow, " and beta_fast is ", c.beta_fast, "; 0 < beta_slow <= beta_fast must hold");
    if (c.scaling == RopeScaling::llama3)
      require(positive(c.low_freq_factor) && positive(c.high_freq_factor) && c.low_freq_factor < c.high_freq_factor,
              "Rope: low_freq_factor is ", c.low_freq_factor, " and high_freq_factor is ", c.high_freq_factor,
              "; 0 < low_freq_factor < high_freq_factor must hold");
  }

  const RopeConfig& config_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
