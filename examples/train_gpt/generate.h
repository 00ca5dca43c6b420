// Writes text with a trained model.
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
  double temperature = 0.8;  ///< what logits are divided by; 0: the best one always wins
  Index top_k = 0;           ///< how many of the best are drawn from; 0: all
  std::uint64_t seed = 1;
};

/// Draws from softmax(logits / temperature). @throws std::runtime_error if they are not all finite.
std::int32_t draw(std::span<const float> logits, const Sampling& sampling, nn::Random& random);

/// Continues the prompt by `length` characters and returns these; `write` gets each as it comes. Keys and values of
/// earlier characters are cached. When the context is full, its second half becomes the first half of a new one. The
/// same seed gives the same text.
/// @throws std::invalid_argument if the prompt is not UTF-8, or has a character that is not known.
std::string continue_text(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                          Index length, const Sampling& sampling,
                          const std::function<void(std::string_view)>& write = {});

}  // namespace train_gpt
