#include "generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace train_gpt {

namespace {

/// Feeds text to the model incrementally.
class Context {
 public:
  explicit Context(const nn::Gpt<float>& model) : model_(model), caches_(model.make_caches(1)) {}

  /// Returns the logits of the token after `all`, of which the last `fresh` have not been fed yet.
  std::vector<float> logits(std::span<const std::int32_t> all, Index fresh) {
    const Index most = model_.config().context;
    if (caches_.front().length(0) + fresh > most) {
      for (auto& cache : caches_) cache.clear();
      fresh = std::min(static_cast<Index>(all.size()), std::max<Index>(most / 2, 1));
    }
    nn::Tokens tokens({1, fresh});
    std::copy(all.end() - fresh, all.end(), tokens.data());
    const nn::States<float> result = model_.next(tokens, caches_);
    const float* last = result.data() + result.size() - result.dim(2);
    return {last, last + result.dim(2)};
  }

 private:
  const nn::Gpt<float>& model_;
  nn::Gpt<float>::Caches caches_;
};

}  // namespace

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

std::string continue_text(const nn::Gpt<float>& model, const Vocabulary& vocabulary, std::string_view prompt,
                          Index length, const Sampling& sampling, const std::function<void(std::string_view)>& write) {
  std::vector<std::int32_t> tokens = vocabulary.encode(prompt);
  if (tokens.empty()) tokens = {vocabulary.contains("\n") ? vocabulary.encode("\n").front() : 0};  // start of a line
  nn::Random random(sampling.seed);
  Context context(model);
  std::string text;
  for (Index i = 0, fresh = static_cast<Index>(tokens.size()); i < length; ++i, fresh = 1) {
    tokens.push_back(draw(context.logits(tokens, fresh), sampling, random));
    const std::string& character = vocabulary.character(tokens.back());
    text += character;
    if (write) write(character);
  }
  return text;
}

}  // namespace train_gpt
