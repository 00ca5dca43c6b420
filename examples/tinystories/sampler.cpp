#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tinystories {

namespace {

struct Candidate {
  double weight;  // its probability, up to a common factor
  Index token;

  /// Whether this candidate is less likely than the other, or equally likely with a larger id. No two tokens are equal,
  /// so that every platform sorts alike.
  bool operator<(const Candidate& other) const {
    return weight != other.weight ? weight < other.weight : token > other.token;
  }
};

/// Returns the first candidate at which the cumulative weight exceeds `limit`. Returns the last if rounding leaves the
/// total below it.
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
    refuse("the temperature must be finite and at least 0, but is ", options.temperature);
  if (!(options.top_p >= 0 && options.top_p <= 1)) refuse("top-p must be in 0..1, but is ", options.top_p);
}

/// Returns a number in [0, 1). The standard's engines return the same numbers on every platform; its distributions do
/// not.
double Sampler::uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

Index Sampler::operator()(std::span<const float> logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    throw std::runtime_error("the network overflows: its weights are not those of a trained network");
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
