// The configuration of a rotary position embedding.
#pragma once

#include <optional>

#include "attn/rope_pairs.h"
#include "attn/types.h"

namespace attn {

/// How RoPE is extended to sequences longer than those that the model was trained on.
enum class RopeScaling {
  none,
  linear,       ///< positions are divided by `factor` (Chen et al. 2023, section 2.3)
  ntk,          ///< a larger base slows the slowest pair down by `factor` and leaves the fastest alone (bloc97 2023)
  yarn,         ///< low frequencies are divided by `factor`, high ones kept, scores sharpened (Peng et al. 2023)
  llama3,       ///< like yarn with other thresholds and unsharpened scores, as in Llama 3.1 (Meta 2024)
  dynamic_ntk,  ///< ntk for the current length: when it grows, keys must be rotated again (emozilla 2023)
  longrope,     ///< each pair has its own factor, found by a search, as in Phi-3 (Ding et al. 2024)
};

/// The sizes and frequencies of a Rope.
struct RopeConfig {
  Index head_dim = 0;                       ///< features of a head; required
  Index rotary_dim = 0;                     ///< leading features that are rotated, an even number; 0: all
  RopePairs pairs = RopePairs::halves;      ///< which features make a pair
  double base = 10000;                      ///< theta; pair i is rotated by position * base^(-2i / rotary_dim)
  RopeScaling scaling = RopeScaling::none;  ///< how frequencies are changed for long sequences
  double factor = 1;                        ///< ratio of the longest sequence length to that of training
  Index trained_length = 0;                 ///< length of training sequences; ignored by `none`, `linear` and `ntk`
  double beta_fast = 32;                    ///< yarn keeps pairs with at least this many rotations in trained_length
  double beta_slow = 1;                     ///< yarn divides the frequency of pairs with at most this many rotations
  double low_freq_factor = 1;               ///< llama3: like yarn's beta_slow
  double high_freq_factor = 4;              ///< llama3: like yarn's beta_fast
  bool round_borders =
      true;  ///< yarn: whether the thresholds are rounded to whole pairs, as in most models (Hugging Face: `truncate`)
  /// yarn, longrope: the factor of cos and sin. The default is 0.1 ln(factor) + 1 (Peng et al. 2023, eq. 22), or sqrt(1
  /// + ln(factor) / ln(trained_length)) (Ding et al. 2024). Models with an `mscale` need a different value.
  std::optional<double> attention_factor = std::nullopt;
  Index length = 0;  ///< dynamic_ntk: length of the sequence; up to trained_length nothing is scaled
};

namespace detail {

/// Fails to compile if a rope is given as sizes in braces, with a message that says how to construct one.
template <class Config, int kNever>
constexpr auto refuse_rope_in_braces() {
  static_assert(
      kNever != 0,
      "attn: the rope option of a cache or layer is an attn::Rope object: write .rope = attn::Rope({.head_dim = 64})");
  return Config{};
}

}  // namespace detail

}  // namespace attn
