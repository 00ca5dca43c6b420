#include "decode.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

namespace transliterate {

namespace {

/// Returns a target as the decoder expects it: preceded by <s>.
Tokens behind_begin(const Tokens& target) {
  Tokens tokens{Vocabulary::kBegin};
  tokens.insert(tokens.end(), target.begin(), target.end());
  return tokens;
}

/// Returns log softmax(logits)[token]. Summed in double, at no cost here, so that only the network's own rounding
/// remains.
template <class Logits>
float log_prob(const Logits& logits, attn::Index token) {
  const double max = static_cast<double>(logits.maxCoeff());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double result = static_cast<double>(logits(token)) - max - std::log(sum);
  if (!std::isfinite(result))
    throw std::runtime_error("the network overflows: its weights are not those of a trained network");
  return static_cast<float>(result);
}

template <class Logits>
attn::Index likeliest(const Logits& logits) {
  attn::Index best = 0;
  logits.maxCoeff(&best);
  return best;
}

}  // namespace

float Scored::total() const { return std::accumulate(log_probs.begin(), log_probs.end(), 0.0f); }

std::vector<Scored> greedy(const Transformer& network, const std::vector<Tokens>& sources, const Tokens& prefix,
                           attn::Path path) {
  const Encoded encoded = network.encode(sources, path);
  std::vector<Scored> results(sources.size());
  std::vector<bool> finished(sources.size(), false);
  std::vector<Tokens> targets(sources.size(), Tokens{Vocabulary::kBegin});  // all have the same length, finished or not

  for (std::size_t step = 0; step < kMaxTargetLength && !std::all_of(finished.begin(), finished.end(), std::identity{});
       ++step) {
    const Decoded decoded = network.decode(encoded, targets, path);
    for (std::size_t b = 0; b < sources.size(); ++b) {
      const auto logits = decoded.logits.matrix(static_cast<attn::Index>(b)).row(static_cast<attn::Index>(step));
      const attn::Index token = step < prefix.size() ? prefix[step] : likeliest(logits);
      targets[b].push_back(token);
      if (finished[b]) continue;
      results[b].log_probs.push_back(log_prob(logits, token));
      finished[b] = token == Vocabulary::kEnd;
      if (!finished[b]) results[b].tokens.push_back(token);
    }
  }
  return results;
}

std::vector<Scored> score(const Transformer& network, const std::vector<Tokens>& sources,
                          const std::vector<Tokens>& targets, attn::Path path) {
  if (sources.size() != targets.size())
    throw std::invalid_argument("score: " + std::to_string(sources.size()) + " sources, but " +
                                std::to_string(targets.size()) + " targets");
  std::vector<Tokens> inputs;
  for (const Tokens& target : targets) inputs.push_back(behind_begin(target));
  const Decoded decoded = network.decode(network.encode(sources, path), inputs, path);

  std::vector<Scored> results;
  for (std::size_t b = 0; b < targets.size(); ++b) {
    Scored result{targets[b], {}};
    const auto logits = decoded.logits.matrix(static_cast<attn::Index>(b));
    for (std::size_t t = 0; t <= targets[b].size(); ++t) {
      const attn::Index token = t < targets[b].size() ? targets[b][t] : Vocabulary::kEnd;
      result.log_probs.push_back(log_prob(logits.row(static_cast<attn::Index>(t)), token));
    }
    results.push_back(std::move(result));
  }
  return results;
}

attn::Tensor<float, 3> attention_map(const Transformer& network, const Tokens& source, const Tokens& target,
                                     attn::Path path) {
  const Decoded decoded = network.decode(network.encode({source}, path), {behind_begin(target)}, path, true);
  return attn::Tensor<float, 3>(decoded.weights.squeeze(0));
}

}  // namespace transliterate
