// endless: writes any length of text in constant memory, with a window of the last tokens and the first ones as sinks.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "../training/command_line.h"
#include "sampler.h"
#include "tokenizer.h"
#include "transformer.h"

namespace {

using namespace tinystories;
using training::whole_number;

constexpr char kDefaultModel[] = TINYSTORIES_MODEL_DIR "/stories260K.bin";
constexpr Index kPageSize = 16;

/// The parsed command line.
struct Request {
  std::string model = kDefaultModel;
  std::string tokenizer = TINYSTORIES_MODEL_DIR "/tok512.bin";
  SamplerOptions sampler{.temperature = 0.8};
  Index tokens = 2000, window = 200, sinks = 4;
};

void write(std::string_view text) {
  if (!(std::cout << text << std::flush)) throw std::runtime_error("standard output cannot be written");
}

/// Writes one story after another. The model sees the sinks and the window, as StreamingLLM does (Xiao et al. 2024).
void run(const Request& request) {
  const Transformer network{Checkpoint(BinaryFile(std::filesystem::path(request.model)))};
  const Config& config = network.config();
  const Tokenizer tokenizer(BinaryFile(std::filesystem::path(request.tokenizer)), config.vocab_size);
  const Index held = request.sinks + request.window + kPageSize;  // just before the oldest page is dropped
  if (held > config.seq_len)
    throw FileError(request.model, "--sinks, --window and a page are " + std::to_string(held) +
                                       " tokens, more than the network's seq_len of " + std::to_string(config.seq_len));
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
    write(next == Tokenizer::kBegin ? "\n\n" : tokenizer.decode(previous, next));
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
  auto* model = app.add_option("MODEL", request.model, "Checkpoint of llama2.c, version 0")->capture_default_str();
  model->needs(app.add_option("TOKENIZER", request.tokenizer, "Its tokenizer")->capture_default_str());
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
  CLI::App app{
      "Writes story after story with a language model trained by llama2.c, in constant memory: the caches hold a "
      "window "
      "of the last tokens, and the first ones as attention sinks. The text goes to standard output, statistics to "
      "standard error.",
      "endless"};
  Request request;
  try {
    add_options(app, request);
    app.parse(argc, argv);
    if (request.model == kDefaultModel && !std::filesystem::exists(request.model))
      throw FileError(request.model,
                      "there is no such file; examples/README.md says where to get it, or pass MODEL and TOKENIZER");
    run(request);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::cerr << "endless: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
