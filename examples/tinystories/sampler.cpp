#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tinystories {

namespace {

struct Candidate {
  double weight;  // its probability, but for a factor that all have
  Index token;

  /// Whether it is unlikelier than the other, or as likely and behind it. Two tokens are never equal, so that every
  /// platform sorts alike.
  bool operator<(const Candidate& other) const {
    return weight != other.weight ? weight < other.weight : token > other.token;
  }
};

/// The first candidate with which the weights pass `limit`; rounding may leave the sum of all below it.
std::size_t where_sum_passes(std::span<const Candidate> candidates, double limit) {
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (sum += candidates[i].weight; sum > limit) return i;
  return candidates.size() - 1;
}

double sum_of(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), engine_(options.seed) {
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    refuse("the temperature is ", options.temperature, ", it must be 0 or more, and finite");
  if (!(options.top_p >= 0 && options.top_p <= 1)) refuse("top-p is ", options.top_p, ", it must be in 0..1");
}

/// A number in [0, 1). The standard's engines draw the same everywhere, its distributions do not.
double Sampler::uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

Index Sampler::operator()(std::span<const float> logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    throw std::runtime_error("the network overflows: its weights are not those of a trained one");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return best - logits.begin();

  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double below_best = static_cast<double>(logits[i]) - static_cast<double>(*best);
    candidates.push_back({std::exp(below_best / options_.temperature), static_cast<Index>(i)});
  }
  std::span<const Candidate> nucleus = candidates;
  if (options_.top_p > 0 && options_.top_p < 1) {
    std::sort(candidates.rbegin(), candidates.rend());
    nucleus = nucleus.first(where_sum_passes(candidates, options_.top_p * sum_of(candidates)) + 1);
  }
  return nucleus[where_sum_passes(nucleus, uniform() * sum_of(nucleus))].token;
}

}  // namespace tinystories
