#include "drafter.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace speculative {

namespace {

/// Packs the last `order` tokens into a key that is unique for all orders.
std::uint64_t key_of(std::span<const Index> text, std::size_t order) {
  std::uint64_t key = order;
  for (const Index token : text.last(order)) key = key << 16 | static_cast<std::uint64_t>(token);
  return key;
}

}  // namespace

void Drafter::learn(std::span<const Index> text, Index next) {
  for (std::size_t order = 0; order <= std::min(kOrder, text.size()); ++order) {
    Counts& counts = counts_[key_of(text, order)];
    ++counts.all;
    auto& tokens = counts.tokens;
    auto found = std::find_if(tokens.begin(), tokens.end(), [&](const Count& c) { return c.token == next; });
    if (found == tokens.end()) found = tokens.insert(found, Count{next, 0});
    ++found->times;
    for (; found != tokens.begin() && found->times > std::prev(found)->times; --found)
      std::swap(*found, *std::prev(found));
  }
}

std::vector<Drafter::Guess> Drafter::guesses(std::span<const Index> context) const {
  constexpr std::size_t kMost = 8;  // tokens of each order: more are hardly ever drafted
  std::vector<Guess> all;
  double rest = 1;
  for (std::size_t order = std::min(kOrder, context.size()) + 1; order-- > 0;) {
    const auto found = counts_.find(key_of(context, order));
    if (found == counts_.end()) continue;
    const auto& [seen, tokens] = found->second;
    const double times = static_cast<double>(seen), own = times / (times + static_cast<double>(tokens.size()));
    for (std::size_t i = 0; i < std::min(kMost, tokens.size()); ++i) {
      const double probability = rest * own * static_cast<double>(tokens[i].times) / times;
      const auto same =
          std::find_if(all.begin(), all.end(), [&](const Guess& g) { return g.token == tokens[i].token; });
      if (same == all.end())
        all.push_back({tokens[i].token, probability});
      else
        same->probability += probability;
    }
    rest *= 1 - own;
  }
  return all;
}

Draft Drafter::draft(std::span<const Index> text, Index nodes, double least) const {
  struct Candidate {
    double probability;  // of the whole path to it
    Index token, parent;
    bool operator<(const Candidate& other) const { return probability < other.probability; }
  };
  std::priority_queue<Candidate> candidates;
  candidates.push({1, text.back(), -1});
  Draft draft;
  while (static_cast<Index>(draft.tokens.size()) < nodes && !candidates.empty()) {
    const Candidate best = candidates.top();
    if (best.probability < least) break;
    candidates.pop();
    const Index node = static_cast<Index>(draft.tokens.size());
    draft.tokens.push_back(best.token);
    draft.parents.push_back(best.parent);

    std::vector<Index> context;  // the last tokens up to this node
    for (Index i = node; i > 0 && context.size() < kOrder; i = draft.parents[static_cast<std::size_t>(i)])
      context.push_back(draft.tokens[static_cast<std::size_t>(i)]);
    for (std::size_t i = text.size(); i > 0 && context.size() < kOrder; --i) context.push_back(text[i - 1]);
    std::reverse(context.begin(), context.end());
    for (const Guess& guess : guesses(context))
      candidates.push({best.probability * guess.probability, guess.token, node});
  }
  return draft;
}

}  // namespace speculative
