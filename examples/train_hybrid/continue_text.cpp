#include "continue_text.h"

#include <algorithm>

namespace train_hybrid {

std::string continue_text(const LanguageModel& model, std::string_view prompt, Index length,
                          const train_gpt::Sampling& sampling, const std::function<void(std::string_view)>& write) {
  std::vector<std::int32_t> fresh = model.vocabulary.encode(prompt);
  if (fresh.empty()) fresh = {model.vocabulary.contains("\n") ? model.vocabulary.encode("\n").front() : 0};
  auto state = model.network.make_state(1, static_cast<Index>(fresh.size()) + length);
  nn::Random random(sampling.seed);
  std::string text;
  for (Index i = 0; i < length; ++i) {
    nn::Tokens tokens({1, static_cast<Index>(fresh.size())});
    std::copy(fresh.begin(), fresh.end(), tokens.data());
    const nn::States<float> logits = model.network.next(tokens, state);
    const Index count = logits.dim(2);
    const float* const last = logits.data() + logits.size() - count;
    fresh = {train_gpt::draw({last, static_cast<std::size_t>(count)}, sampling, random)};
    const std::string& character = model.vocabulary.character(fresh.front());
    text += character;
    if (write) write(character);
  }
  return text;
}

}  // namespace train_hybrid
