// endless: writes any length of text in constant memory, with a window of the last tokens and the first ones as sinks.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "../training/command_line.h"
#include "program.h"
#include "sampler.h"

namespace {

using namespace tinystories;
using training::whole_number;

constexpr Index kPageSize = 16;

/// The parsed command line.
struct Request {
  ModelFiles files;
  SamplerOptions sampler{.temperature = 0.8};
  Index tokens = 2000, window = 200, sinks = 4;
};

/// Writes one story after another. The model sees the sinks and the window, as StreamingLLM does (Xiao et al. 2024).
void run(const Request& request) {
  const Transformer network = request.files.read_network();
  const Config& config = network.config();
  const Tokenizer tokenizer = request.files.read_tokenizer(config);
  const Index held = request.sinks + request.window + kPageSize;  // just before the oldest page is dropped
  if (held > config.seq_len)
    throw FileError(request.files.model, "--sinks, --window and a page are " + std::to_string(held) +
                                             " tokens, more than the network's seq_len of " +
                                             std::to_string(config.seq_len));
  Context context(
      config,
      {.paged = true, .capacity = held, .page_size = kPageSize, .window = request.window, .sinks = request.sinks});
  Sampler sampler(request.sampler);

  using Clock = std::chrono::steady_clock;
  const Index quarter = std::max<Index>(request.tokens / 4, 1);
  std::vector<double> seconds;  // of each quarter
  Clock::time_point start = Clock::now();
  Index previous = Tokenizer::kBegin, most = 0;
  for (Index i = 0; i < request.tokens; ++i) {
    const Matrix logits = network.logits(network.forward(std::span(&previous, 1), context));
    const Index next = sampler({logits.data(), static_cast<std::size_t>(logits.size())});
    write_out(next == Tokenizer::kBegin ? "\n\n" : tokenizer.decode(previous, next));
    previous = next;
    most = std::max(most, context.length());
    if ((i + 1) % quarter == 0) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      start = Clock::now();
    }
  }
  std::cerr << "\n\ntokens written          " << request.tokens << '\n'
            << "most tokens in caches   " << most << '\n'
            << "memory of caches        " << context.bytes() / 1024 << " KiB\n"
            << std::fixed << std::setprecision(0);
  for (std::size_t i = 0; i < seconds.size() && request.tokens % 4 == 0; ++i)
    std::cerr << "tokens per second       " << static_cast<double>(quarter) / seconds[i] << " in quarter " << i + 1
              << '\n';
}

void add_options(CLI::App& app, Request& request) {
  constexpr std::uint64_t kMost = 1 << 30;
  request.files.add_options(app);
  app.add_option("-n,--tokens", request.tokens, "Tokens to write")
      ->check(whole_number(1, kMost))
      ->option_text("NUMBER [2000]");
  app.add_option("--window", request.window, "Minimum number of recent tokens that the model sees")
      ->check(whole_number(1, kMost))
      ->option_text("NUMBER [200]");
  app.add_option("--sinks", request.sinks, "Number of first tokens that it always sees")
      ->check(whole_number(0, kMost))
      ->option_text("NUMBER [4]");
  app.add_option("-t,--temperature", request.sampler.temperature, "Sampling temperature: 0 takes the likeliest token")
      ->option_text("NUMBER [0.8]");
  app.add_option("-s,--seed", request.sampler.seed, "Seed of the sampling")
      ->check(whole_number(0))
      ->option_text("NUMBER [0]");
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  CLI::App app{
      "Writes story after story with a language model trained by llama2.c, in constant memory: the caches hold a "
      "window of the last tokens, and the first ones as attention sinks. The text goes to standard output, statistics "
      "to standard error.",
      "endless"};
  add_options(app, request);
  return training::parse_and_run(app, argc, argv, [&] { run(request); });
}
