// Text generation with a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// Continues a prompt, character by character. Keys and values of earlier characters are cached. When the context is
/// full, its second half becomes the first half of a new one. The same seed gives the same text.
class Continuation {
 public:
  /// The model and the vocabulary must exist for as long as this does. An empty prompt means the start of a line.
  /// @throws std::invalid_argument if the prompt is not UTF-8, or has a character that is not in the vocabulary.
  Continuation(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
               const Sampling& sampling);

  /// Returns the next character.
  const std::string& next();

 private:
  std::vector<float> logits();

  const nn::Gpt<float>& model_;
  const Vocabulary& vocabulary_;
  Sampling sampling_;
  nn::Random random_;
  nn::Caches<float> caches_;
  std::vector<std::int32_t> tokens_;
  Index fresh_;  // tokens at the end that have not been fed to the model yet
};

/// Continues the prompt by `length` characters and returns these; `write` receives each as it is generated.
/// @throws std::invalid_argument if the prompt is not UTF-8, or has a character that is not in the vocabulary.
std::string continue_text(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                          Index length, const Sampling& sampling,
                          const std::function<void(std::string_view)>& write = {});

}  // namespace train_gpt
