#include "speculate.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace speculative {

namespace {

/// The child of a node that has this token, or -1.
Index child(const Draft& draft, Index node, Index token) {
  for (std::size_t i = static_cast<std::size_t>(node) + 1; i < draft.tokens.size(); ++i)
    if (draft.parents[i] == node && draft.tokens[i] == token) return static_cast<Index>(i);
  return -1;
}

}  // namespace

Statistics speculate(const Transformer& network, const Tokenizer& tokenizer, Sampler& sampler, const Tokens& prompt,
                     Context& context, Drafter& drafter, const Options& options, const tinystories::Write& write) {
  const Index prompt_tokens = static_cast<Index>(prompt.size());
  if (prompt_tokens > options.steps)
    throw std::invalid_argument("the prompt has " + std::to_string(prompt_tokens) + " tokens, more than the " +
                                std::to_string(options.steps) + " steps");
  using Clock = std::chrono::steady_clock;
  Statistics statistics;
  Tokens text;  // everything written; its last token has not been processed yet
  const auto add = [&](Index token) {
    if (!text.empty()) {
      drafter.learn(text, token);
      write(tokenizer.decode(text.back(), token));
    }
    text.push_back(token);
  };
  for (const Index token : prompt) add(token);

  Draft draft{prompt, std::vector<Index>(prompt.size())};  // the prompt is a path
  for (std::size_t i = 0; i < prompt.size(); ++i) draft.parents[i] = static_cast<Index>(i) - 1;
  std::vector<Index> path(prompt.size());  // the accepted nodes
  for (std::size_t i = 0; i < path.size(); ++i) path[i] = static_cast<Index>(i);
  Clock::time_point start;
  for (bool ends = false; !ends;) {
    const tinystories::Matrix states = network.forward(draft.tokens, context, options.attention, {}, draft.parents);
    const tinystories::Matrix logits = network.logits(states, options.attention);
    do {
      const auto row = logits.row(path.back());
      const Index next = sampler({row.data(), static_cast<std::size_t>(row.size())});
      ends = next == Tokenizer::kBegin;
      if (ends) break;
      add(next);
      ++statistics.new_tokens;
      ends = static_cast<Index>(text.size()) > options.steps;
      path.push_back(ends ? -1 : child(draft, path.back(), next));
    } while (path.back() >= 0);
    if (path.back() < 0) path.pop_back();
    context.accept(path);
    if (statistics.calls++ == 0) start = Clock::now();
    draft = drafter.draft(text, options.nodes, options.least);
    path = {0};
  }
  statistics.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  --statistics.calls;  // the first processed the prompt
  text.resize(static_cast<std::size_t>(context.length()));
  statistics.tokens = std::move(text);
  return statistics;
}

}  // namespace speculative
