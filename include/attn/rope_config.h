// The configuration of a rotary position embedding.
#pragma once

#include <optional>

#include "attn/rope_pairs.h"
#include "attn/types.h"

namespace attn {

/// How RoPE is stretched to texts longer than those that the model was trained on.
enum class RopeScaling {
  none,
  linear,  ///< positions are divided by `factor` (Chen et al. 2023, section 2.3)
  ntk,  ///< the base grows so that the slowest pair turns `factor` times as slowly, the fastest as before (bloc97 2023)
  yarn,         ///< slow frequencies are divided by `factor`, fast ones kept, scores sharpened (Peng et al. 2023)
  llama3,       ///< the idea of yarn with other borders, as Llama 3.1 was trained (Meta 2024)
  dynamic_ntk,  ///< ntk for the length of the text at hand: its keys must be turned again when it grows (emozilla 2023)
  longrope,     ///< each pair has a factor of its own, found by a search, as in Phi-3 (Ding et al. 2024)
};

/// The sizes and frequencies of a Rope.
struct RopeConfig {
  Index head_dim = 0;                       ///< features of a head; there is no default
  Index rotary_dim = 0;                     ///< how many of a head's first features are turned, an even number; 0: all
  RopePairs pairs = RopePairs::halves;      ///< which features make a pair
  double base = 10000;                      ///< theta; pair i turns by position * base^(-2i / rotary_dim)
  RopeScaling scaling = RopeScaling::none;  ///< how frequencies are changed for long texts
  double factor = 1;                        ///< how many times longer texts may be than in training
  Index trained_length = 0;                 ///< tokens in a training text; yarn and llama3 need it
  double beta_fast = 32;                    ///< yarn keeps pairs that turn at least this many times in a training text
  double beta_slow = 1;                     ///< yarn divides the frequency of pairs that turn at most this many times
  double low_freq_factor = 1;               ///< llama3: what beta_slow is for yarn
  double high_freq_factor = 4;              ///< llama3: what beta_fast is for yarn
  bool round_borders =
      true;  ///< yarn: whether the borders are rounded to whole pairs, as in most models (Hugging Face: `truncate`)
  /// yarn, longrope: what cos and sin are multiplied by. The default is 0.1 ln(factor) + 1 (Peng et al. 2023, eq. 22),
  /// or sqrt(1 + ln(factor) / ln(trained_length)) (Ding et al. 2024). Models with an `mscale` need another.
  std::optional<double> attention_factor = std::nullopt;
  Index length = 0;  ///< dynamic_ntk: tokens of the text; up to trained_length nothing is scaled
};

namespace detail {

/// Says in one sentence how a rope is made, where its sizes stand in braces.
template <class Config, int kNever>
constexpr auto refuse_rope_in_braces() {
  static_assert(
      kNever != 0,
      "attn: the rope of a cache or of a layer is an object, which both have: .rope = attn::Rope({.head_dim = "
      "64})");
  return Config{};
}

}  // namespace detail

}  // namespace attn
