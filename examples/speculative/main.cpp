// speculative: writes the same text twice, with one token per call of a network and with trees of drafted tokens that
// the network verifies.
#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "../display/bar.h"
#include "../training/command_line.h"
#include "program.h"
#include "speculate.h"

namespace {

using namespace tinystories;
using speculative::Drafter;
using training::whole_number;

/// The parsed command line.
struct Request {
  ModelFiles files;
  std::string prompt;
  SamplerOptions sampler{.temperature = 0};
  Index steps = 200, nodes = 8, learn = 3000, repeat = 5;
  double least = 0.3;
  std::optional<int> threads;
  bool same_bits = false;
};

class Program {
 public:
  explicit Program(const Request& request)
      : request_(request),
        network_(request.files.read_network()),
        tokenizer_(request.files.read_tokenizer(network_.config())),
        prompt_(tokenizer_.encode(request.prompt)),
        attention_{.executor = executor_of(request.threads), .row_invariant = request.same_bits} {
    if (network_.config().vocab_size > Drafter::kMostTokens)
      throw FileError(request.files.model, "the vocabulary has " + std::to_string(network_.config().vocab_size) +
                                               " tokens, more than the drafter's " +
                                               std::to_string(Drafter::kMostTokens));
    if (request.steps > network_.config().seq_len)
      throw FileError(request.files.model, "--steps is " + std::to_string(request.steps) +
                                               ", more than the network's seq_len of " +
                                               std::to_string(network_.config().seq_len));
  }

  /// Writes the text with and without drafts, as often as requested, and prints the statistics.
  void run() const {
    Drafter drafter;
    const Index learned = learn(drafter);
    std::optional<double> plain, drafted;  // the shortest times, in seconds
    speculative::Statistics last;
    std::optional<display::Bar> bar;  // of the rounds that print no text
    for (Index round = 0; round < request_.repeat; ++round) {
      const bool first = round == 0;
      std::string text, same;
      const Statistics one = write_plainly(request_.steps, request_.sampler, [&](std::string_view part) {
        text += part;
        if (first) write_out(part);
      });
      Sampler sampler(request_.sampler);
      Context context = context_for(request_.steps + request_.nodes);
      Drafter own = drafter;  // has not seen this text yet
      last = speculate(
          network_, tokenizer_, sampler, prompt_, context, own,
          {.steps = request_.steps, .nodes = request_.nodes, .least = request_.least, .attention = attention_},
          [&](std::string_view part) { same += part; });
      if (same != text || last.tokens != one.tokens) throw std::runtime_error("with drafts the text differs:\n" + same);
      plain = std::min(plain.value_or(one.seconds_after_it), one.seconds_after_it);
      drafted = std::min(drafted.value_or(last.seconds), last.seconds);
      if (first) {
        std::cerr << "\n\n";
        bar.emplace("writing the text again");
      } else {
        bar->update(round, request_.repeat - 1);
      }
    }
    bar.reset();
    print(learned, last, *plain, *drafted);
  }

 private:
  Context context_for(Index tokens) const { return {network_.config(), {.capacity = tokens}}; }

  Statistics write_plainly(Index steps, const SamplerOptions& options, const Write& write) const {
    Sampler sampler(options);
    Context context = context_for(steps);
    return generate(network_, tokenizer_, sampler, prompt_, context, {.steps = steps, .attention = attention_}, write);
  }

  /// Lets the network write stories at temperature 1, and the drafter learn their tokens. Returns their number.
  Index learn(Drafter& drafter) const {
    SamplerOptions options{.temperature = 1, .seed = request_.sampler.seed};
    Index learned = 0;
    display::Bar bar("writing stories to learn from");
    while (learned < request_.learn) {
      const Tokens story = write_plainly(network_.config().seq_len, options, [](std::string_view) {}).tokens;
      for (std::size_t i = 1; i < story.size() && learned < request_.learn; ++i, ++learned)
        drafter.learn(std::span(story).first(i), story[i]);
      bar.update(learned, request_.learn);
      ++options.seed;
      if (story.size() < 2) break;  // a network that writes nothing
    }
    return learned;
  }

  static void print(Index learned, const speculative::Statistics& statistics, double plain, double drafted) {
    const auto after_first = static_cast<double>(statistics.new_tokens - 1);  // the first comes with the prompt
    std::cerr << "n-grams from before     " << learned << " tokens\n"
              << "new tokens              " << statistics.new_tokens << '\n'
              << "calls of the network    " << statistics.calls << '\n';
    if (statistics.calls == 0) return;
    std::cerr << std::fixed << std::setprecision(2)  //
              << "tokens per call         " << after_first / static_cast<double>(statistics.calls) << '\n'
              << std::setprecision(0)  //
              << "tokens per second       " << after_first / drafted << ", without drafts " << after_first / plain
              << '\n'
              << std::setprecision(2)  //
              << "speed-up                " << plain / drafted << '\n';
  }

  const Request& request_;
  const Transformer network_;
  const Tokenizer tokenizer_;
  const Tokens prompt_;
  const attn::Options attention_;
};

void add_options(CLI::App& app, Request& request) {
  request.files.add_options(app);
  app.add_option("-i,--prompt", request.prompt, "The text to continue")->option_text("TEXT");
  app.add_option("-n,--steps", request.steps, "Tokens to process, including the prompt")
      ->check(whole_number(1, 1 << 20))
      ->option_text("NUMBER [200]");
  app.add_option("--nodes", request.nodes, "Nodes of a tree of drafts, including the last token of the text")
      ->check(whole_number(1, 1024))
      ->option_text("NUMBER [8]");
  app.add_option("--least", request.least, "Draft only tokens whose estimated probability is at least this")
      ->option_text("NUMBER [0.3]");
  app.add_option("--learn", request.learn,
                 "Tokens that the network writes first, at temperature 1, and whose n-grams drafts may use")
      ->check(whole_number(0, 1 << 24))
      ->option_text("NUMBER [3000]");
  app.add_option("-t,--temperature", request.sampler.temperature, "Sampling temperature: 0 takes the likeliest token")
      ->option_text("NUMBER [0]");
  app.add_option("-s,--seed", request.sampler.seed, "Seed of the sampling")
      ->check(whole_number(0))
      ->option_text("NUMBER [0]");
  app.add_option("--repeat", request.repeat,
                 "How often to write the text with and without drafts, in turn; times are the shortest")
      ->check(whole_number(1, 10000))
      ->option_text("NUMBER [5]");
  app.add_option("--threads", request.threads, "Threads for attention; by default as many as pay off")
      ->check(whole_number(1, 1024))
      ->option_text("NUMBER");
  app.add_flag(
      "--same-bits", request.same_bits,
      "Make logits equal in all bits, so that the text cannot differ even where two tokens are equally likely");
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  CLI::App app{
      "Continues a text with a language model trained by llama2.c, one token at a time and with drafted tokens that "
      "the model verifies in trees. The text, which is the same, goes to standard output, statistics to standard "
      "error.",
      "speculative"};
  add_options(app, request);
  return training::parse_and_run(app, argc, argv, [&] { Program(request).run(); });
}
