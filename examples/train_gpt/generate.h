// Text generation with a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "gpt.h"
#include "random.h"
#include "vocabulary.h"

namespace train_gpt {

using nn::Index;

struct Sampling {
  double temperature = 0.8;  ///< divides the logits; 0: always the largest logit
  Index top_k = 0;           ///< draws only from this many of the likeliest tokens; 0: from all
  std::uint64_t seed = 1;
};

/// Draws a token from softmax(logits / temperature). @throws std::runtime_error if logits are not all finite.
std::int32_t draw(std::span<const float> logits, const Sampling& sampling, nn::Random& random);

/// Continues the prompt by `length` characters and returns these; `write` receives each as it is generated. Keys and
/// values of earlier characters are cached. When the context is full, its second half becomes the first half of a new
/// one. The same seed gives the same text.
/// @throws std::invalid_argument if the prompt is not UTF-8, or has a character that is not in the vocabulary.
std::string continue_text(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                          Index length, const Sampling& sampling,
                          const std::function<void(std::string_view)>& write = {});

}  // namespace train_gpt
