// tinystories: continues a text with a network that llama2.c trained.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "../training/command_line.h"
#include "generate.h"
#include "perplexity.h"
#include "program.h"
#include "same_bits.h"

namespace {

using namespace tinystories;
using training::whole_number;

/// The parsed command line.
struct Request {
  ModelFiles files;
  SamplerOptions sampler;
  std::optional<std::uint64_t> seed;
  std::string prompt;
  std::optional<Index> steps;
  std::string cache = "contiguous";
  std::string cache_type = "f32";
  std::string text;  // whose perplexity is printed
  std::optional<Index> page_size;
  std::optional<int> threads;
  bool token_by_token = false;
  bool same_bits = false;
};

/// Returns the value of an option that counts tokens: the given one, else the smaller of `otherwise` and the network's
/// seq_len. @throws FileError if it exceeds the network's seq_len.
Index at_most_seq_len(const Request& request, const Config& config, const std::string& option,
                      const std::optional<Index>& given, Index otherwise) {
  if (given && *given > config.seq_len)
    throw FileError(request.files.model, option + " is " + std::to_string(*given) +
                                             ", more than the network's seq_len of " + std::to_string(config.seq_len));
  return given.value_or(std::min(otherwise, config.seq_len));
}

Index steps_of(const Request& request, const Config& config) {
  const Index steps = at_most_seq_len(request, config, "--steps", request.steps, 256);
  return steps == 0 ? config.seq_len : steps;
}

constexpr const char* kCacheTypes[] = {"f32", "bf16", "f8", "i8", "i4"};  // in the order of CacheType

CacheOptions cache_of(const Request& request, const Config& config, Index steps) {
  const auto type = std::find(std::begin(kCacheTypes), std::end(kCacheTypes), request.cache_type);
  return {.paged = request.cache == "paged",
          .capacity = steps,
          .page_size = at_most_seq_len(request, config, "--page-size", request.page_size, 64),
          .type = static_cast<CacheType>(type - std::begin(kCacheTypes))};
}

/// Prints the statistics, and `seed` so that the text can be reproduced; `seed` is empty if the user gave it or it had
/// no effect.
void print(const Statistics& statistics, std::optional<std::uint64_t> seed) {
  std::cerr << '\n'  // the text may end anywhere in a line
            << "prompt tokens        " << statistics.prompt_tokens << '\n'
            << "new tokens           " << statistics.new_tokens << '\n'
            << std::fixed << std::setprecision(2);
  if (statistics.new_tokens > 0)
    std::cerr << "time to first token  " << 1e3 * statistics.seconds_to_first_token << " ms\n";
  if (statistics.new_tokens > 1)
    std::cerr << "tokens per second    " << std::setprecision(0)
              << static_cast<double>(statistics.new_tokens - 1) / statistics.seconds_after_it << '\n';
  if (seed) std::cerr << "seed                 " << *seed << '\n';
}

/// Prints a line for each method that computes the logits of a text. @throws std::runtime_error if bits differ.
void print_bits(const Transformer& network, const Tokens& tokens, const attn::Options& options) {
  Index differing = 0;
  std::cout << "\n\nlogits of " << tokens.size() << " tokens\n";
  for (const LogitsOfMethod& method : logits_of_all_methods(network, tokens, options)) {
    std::cout << std::left << std::setw(23) << method.name << std::right << std::hex << std::setw(16)
              << std::setfill('0') << method.hash << std::dec << std::setfill(' ') << '\n';
    differing += method.differing;
  }
  if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
  if (differing > 0) throw std::runtime_error("the bits of " + std::to_string(differing) + " rows differ");
}

/// Prints the perplexity of a text, and the size of the cache.
void print_perplexity(const Request& request, const Transformer& network, const Tokenizer& tokenizer) {
  constexpr std::uint64_t kMost = std::uint64_t(1) << 24;
  BinaryFile file{std::filesystem::path(request.text)};
  if (file.size() > kMost)
    throw FileError(request.text, "has " + std::to_string(file.size()) + " bytes, more than " + std::to_string(kMost));
  const Tokens tokens = tokenizer.encode(file.bytes(static_cast<std::uint32_t>(file.size()), "the text"));
  const Index capacity = network.config().seq_len;
  Context context(network.config(), cache_of(request, network.config(), capacity));
  const double found = perplexity(network, tokens, context, {.executor = executor_of(request.threads)});
  std::cout << "tokens           " << tokens.size() - 1 << '\n'
            << "perplexity       " << std::fixed << std::setprecision(4) << found << '\n'
            << "bytes of cache   " << context.bytes() << ", for " << capacity << " tokens\n";
  if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
}

void run(const Request& request) {
  SamplerOptions options = request.sampler;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  options.seed = request.seed.value_or(static_cast<std::uint64_t>(now.count()));
  Sampler sampler(options);

  const Transformer network = request.files.read_network();
  const Config& config = network.config();
  const Tokenizer tokenizer = request.files.read_tokenizer(config);
  if (!request.text.empty()) return print_perplexity(request, network, tokenizer);
  const Index steps = steps_of(request, config);
  const Tokens prompt = tokenizer.encode(request.prompt);
  if (static_cast<Index>(prompt.size()) > config.seq_len)
    throw FileError(request.files.model, "the prompt has " + std::to_string(prompt.size()) +
                                             " tokens, more than the network's seq_len of " +
                                             std::to_string(config.seq_len));

  Context context(config, cache_of(request, config, steps));
  const attn::Options attention{.executor = executor_of(request.threads), .row_invariant = request.same_bits};
  const Statistics statistics =
      generate(network, tokenizer, sampler, prompt, context,
               {.steps = steps, .token_by_token = request.token_by_token, .attention = attention}, write_out);
  if (request.same_bits) print_bits(network, statistics.tokens, attention);
  print(statistics, request.seed || options.temperature == 0 ? std::nullopt : std::optional(options.seed));
}

void add_options(CLI::App& app, Request& request) {
  constexpr std::uint64_t kMostTokens = std::numeric_limits<std::int32_t>::max();  // the limit of a checkpoint
  request.files.add_options(app);
  app.add_option("-t,--temperature", request.sampler.temperature,
                 "Sampling temperature: 0 takes the likeliest token, 1 samples from the network's probabilities")
      ->option_text("NUMBER [1]");
  app.add_option("-p,--top-p", request.sampler.top_p,
                 "Sample from the likeliest tokens that together have this probability; 0 or 1: from all")
      ->option_text("NUMBER [0.9]");
  app.add_option("-s,--seed", request.seed, "Seed of the sampling; by default from the clock, and printed")
      ->check(whole_number(0))
      ->option_text("NUMBER");
  app.add_option("-i,--prompt", request.prompt, "The text to continue")->option_text("TEXT");
  app.add_option("-n,--steps", request.steps,
                 "Tokens to process, including the prompt; 0: the network's maximum; by default 256, or the network's "
                 "maximum if that is less")
      ->check(whole_number(0, kMostTokens))
      ->option_text("NUMBER");
  app.add_option("--cache", request.cache, "Cache for keys and values: contiguous (default) or paged")
      ->check(CLI::IsMember({"contiguous", "paged"}))
      ->option_text("contiguous|paged");
  app.add_option("--cache-type", request.cache_type,
                 "Numbers in the cache: 32-bit (default) or 16-bit floats, 8-bit floats (E4M3), or 8-bit or 4-bit "
                 "integers with scales")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kCacheTypes), std::end(kCacheTypes))))
      ->option_text("f32|bf16|f8|i8|i4");
  app.add_option(
         "--perplexity", request.text,
         "Instead of generating, print how well the network predicts the text in this file, and the size of the "
         "cache")
      ->option_text("FILE");
  app.add_option("--page-size", request.page_size, "Tokens per page of the paged cache")
      ->check(whole_number(1, kMostTokens))
      ->option_text("NUMBER [64]");
  app.add_option("--threads", request.threads, "Threads for attention; by default as many as pay off")
      ->check(whole_number(1, 1024))
      ->option_text("NUMBER");
  app.add_flag("--token-by-token", request.token_by_token, "Process the prompt token by token instead of in one chunk");
  app.add_flag("--same-bits", request.same_bits,
               "Make the bits of a token independent of how it is computed, and then print a hash of all logits for "
               "prompts, chunks, single tokens, pages, batches and drafts");
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  CLI::App app{
      "Continues a text with a language model trained by llama2.c. The text goes to standard output as it is "
      "generated, statistics to standard error.",
      "tinystories"};
  add_options(app, request);
  return training::parse_and_run(app, argc, argv, [&] { run(request); });
}
