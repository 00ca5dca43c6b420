#include "generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace train_gpt {

std::int32_t draw(std::span<const float> logits, const Sampling& sampling, nn::Random& random) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    throw std::runtime_error("the model's logits are not finite");
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t token) { return static_cast<double>(logits[static_cast<std::size_t>(token)]); };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  if (sampling.temperature == 0) return order.front();
  if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(sampling.top_k)));
  std::vector<double> weights;
  for (const std::int32_t token : order)
    weights.push_back(std::exp((logit(token) - logit(order.front())) / sampling.temperature));
  double left = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < order.size(); ++i)
    if ((left -= weights[i]) < 0) return order[i];
  return order.front();  // the sum was rounded
}

Continuation::Continuation(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                           const Sampling& sampling)
    : model_(model),
      vocabulary_(vocabulary),
      sampling_(sampling),
      random_(sampling.seed),
      caches_(model.make_caches(1)),
      tokens_(vocabulary.encode(prompt)) {
  if (tokens_.empty()) tokens_ = {vocabulary.contains("\n") ? vocabulary.encode("\n").front() : 0};
  fresh_ = static_cast<Index>(tokens_.size());
}

const std::string& Continuation::next() {
  tokens_.push_back(draw(logits(), sampling_, random_));
  fresh_ = 1;
  return vocabulary_.character(tokens_.back());
}

std::vector<float> Continuation::logits() {
  const Index most = model_.config().context;
  if (caches_.length() + fresh_ > most) {
    caches_.kv.truncate(caches_.sequences.front(), 0);
    fresh_ = std::min(static_cast<Index>(tokens_.size()), std::max<Index>(most / 2, 1));
  }
  nn::Tokens tokens({1, fresh_});
  std::copy(tokens_.end() - fresh_, tokens_.end(), tokens.data());
  const nn::States<float> result = model_.next(tokens, caches_);
  const float* last = result.data() + result.size() - result.dim(2);
  return {last, last + result.dim(2)};
}

std::string continue_text(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                          Index length, const Sampling& sampling, const std::function<void(std::string_view)>& write) {
  Continuation continuation(model, vocabulary, prompt, sampling);
  std::string text;
  for (Index i = 0; i < length; ++i) {
    const std::string& character = continuation.next();
    text += character;
    if (write) write(character);
  }
  return text;
}

}  // namespace train_gpt
