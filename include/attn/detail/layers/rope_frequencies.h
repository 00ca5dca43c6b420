// The frequencies that the pairs of a Rope turn with, and the checks of what they are made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/detail/base/check.h"
#include "attn/rope_config.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The frequencies of the pairs of a Rope with a configuration, to which it keeps a reference.
class RopeFrequencies {
 public:
  /// @throws std::invalid_argument for sizes or numbers that make no sense; the message has them.
  explicit RopeFrequencies(const RopeConfig& config) : config_(config) { check(); }

  /// The frequency of pair i, in radians per position. rotary_dim must have been filled in by then.
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
        const double fast = pair_that_turns(config_.beta_fast), slow = pair_that_turns(config_.beta_slow);
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
  /// The base grows so that the slowest pair turns `factor` times as slowly. A single pair is the fastest one.
  double with_base_times(double factor, Index i) const {
    const double dim = static_cast<double>(config_.rotary_dim);
    return frequency(dim > 2 ? config_.base * std::pow(factor, dim / (dim - 2)) : config_.base, i);
  }
  double frequency(double base, Index i) const {
    return std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(config_.rotary_dim));
  }
  /// The frequency `plain`, of which the share `divided`, from 0 to 1, is divided by the factor.
  double mixed(double plain, double divided) const { return divided * plain / config_.factor + (1 - divided) * plain; }
  /// Which pair turns `times` times in a training text. A fraction lies between two pairs.
  double pair_that_turns(double times) const {
    const double dim = static_cast<double>(config_.rotary_dim), length = static_cast<double>(config_.trained_length);
    return dim * std::log(length / (times * 2 * std::numbers::pi)) / (2 * std::log(config_.base));
  }

  void check() const {
    const RopeConfig& c = config_;
    const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
    require(c.head_dim > 0, "Rope: head_dim is ", c.head_dim, ", it must be positive");
    const Index rotary = c.rotary_dim == 0 ? c.head_dim : c.rotary_dim;
    require(rotary > 0 && rotary <= c.head_dim && rotary % 2 == 0, "Rope: rotary_dim is ", rotary, " of head_dim ",
            c.head_dim, "; it must be even, positive and no more than that");
    constexpr Index kMost = Index(1) << 24;  // each pair has an entry in a table
    require(rotary <= kMost, "Rope: rotary_dim is ", rotary, ", more than ", kMost);
    require(c.base > 1 && std::isfinite(c.base), "Rope: base is ", c.base, ", it must be more than 1");
    require(positive(c.factor), "Rope: factor is ", c.factor, ", it must be positive");
    if (c.attention_factor) {
      require(positive(*c.attention_factor), "Rope: attention_factor is ", *c.attention_factor,
              ", it must be positive");
      require(c.scaling == RopeScaling::yarn || c.scaling == RopeScaling::longrope, "Rope: attention_factor is ",
              *c.attention_factor, ", but only yarn and longrope have one");
    }
    const bool stretches = c.scaling == RopeScaling::linear || c.scaling == RopeScaling::ntk;
    if (c.scaling == RopeScaling::none || stretches) return;
    require(c.trained_length > (c.scaling == RopeScaling::longrope ? 1 : 0), "Rope: trained_length is ",
            c.trained_length, "; this scaling needs the length of the texts of the training");
    require(c.scaling != RopeScaling::dynamic_ntk || (c.length >= 0 && c.factor >= 1),
            "Rope: dynamic_ntk with a length of ", c.length, " and a factor of ", c.factor,
            "; neither may be negative, and the factor must be at least 1");
    if (c.scaling == RopeScaling::yarn)
      require(positive(c.beta_slow) && positive(c.beta_fast) && c.beta_slow <= c.beta_fast, "Rope: beta_slow is ",
              c.beta_slow, ", beta_fast ", c.beta_fast, "; 0 < beta_slow <= beta_fast must hold");
    if (c.scaling == RopeScaling::llama3)
      require(positive(c.low_freq_factor) && positive(c.high_freq_factor) && c.low_freq_factor < c.high_freq_factor,
              "Rope: low_freq_factor is ", c.low_freq_factor, ", high_freq_factor ", c.high_freq_factor,
              "; 0 < low_freq_factor < high_freq_factor must hold");
  }

  const RopeConfig& config_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
