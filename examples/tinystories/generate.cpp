#include "generate.h"

#include <chrono>
#include <span>
#include <stdexcept>
#include <string>

namespace tinystories {

namespace {

/// Feeds the tokens and returns the logits of the next one.
Matrix feed(const Transformer& network, std::span<const Index> tokens, Context& context,
            const GenerateOptions& options) {
  const std::size_t chunk = options.token_by_token ? 1 : tokens.size();
  for (; tokens.size() > chunk; tokens = tokens.subspan(chunk))
    network.forward(tokens.first(chunk), context, options.attention);
  return network.logits(network.forward(tokens, context, options.attention).bottomRows(1), options.attention);
}

}  // namespace

Statistics generate(const Transformer& network, const Tokenizer& tokenizer, Sampler& sampler, const Tokens& prompt,
                    Context& context, const GenerateOptions& options, const Write& write) {
  const Index prompt_tokens = static_cast<Index>(prompt.size());
  if (prompt_tokens > options.steps)
    throw std::invalid_argument("the prompt has " + std::to_string(prompt_tokens) + " tokens, more than the " +
                                std::to_string(options.steps) + " steps");
  for (std::size_t i = 1; i < prompt.size(); ++i) write(tokenizer.decode(prompt[i - 1], prompt[i]));

  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Statistics statistics{.prompt_tokens = prompt_tokens};
  Tokens fed = prompt;
  Clock::time_point start = Clock::now();
  for (;;) {
    const Matrix logits = feed(network, fed, context, options);
    statistics.tokens.insert(statistics.tokens.end(), fed.begin(), fed.end());
    const Index previous = fed.back(), next = sampler({logits.data(), static_cast<std::size_t>(logits.size())});
    if (next == Tokenizer::kBegin) break;
    write(tokenizer.decode(previous, next));
    if (statistics.new_tokens++ == 0) {
      statistics.seconds_to_first_token = seconds_since(start);
      start = Clock::now();
    }
    if (context.length() == options.steps) break;
    fed = {next};
  }
  statistics.seconds_after_it = statistics.new_tokens > 0 ? seconds_since(start) : 0;
  return statistics;
}

}  // namespace tinystories
