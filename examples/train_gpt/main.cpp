// train_gpt: trains a GPT on any text, character by character, and generates text with it.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "arguments.h"
#include "checkpoint.h"
#include "decimals.h"
#include "files.h"
#include "new_file.h"
#include "program.h"
#include "ranks.h"
#include "run_report.h"
#include "threads.h"

namespace {

using namespace train_gpt;

/// Writes text to standard output. A file gets the characters as generated; a terminal gets control characters
/// replaced, because it would interpret them.
void write(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (!(std::cout << (terminal ? nn::as_text(text) : text) << std::flush))
    throw std::runtime_error("standard output cannot be written");
}

void require_known(const std::string& prompt, const Vocabulary& vocabulary) {
  try {
    vocabulary.encode(prompt);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--prompt: ") + error.what());
  }
}

/// Continues the prompt on standard output.
void generate(const State& state, const Request& request) {
  if (request.length == 0) return;
  Sampling sampling = request.sampling;
  sampling.seed = request.seed.value_or(state.options.seed);
  write(request.prompt);
  continue_text(state.model, state.vocabulary, request.prompt, request.length, sampling, write);
  write("\n");
}

/// Returns the file of the text that a new run trains on.
std::filesystem::path data_of(const Request& request) {
  if (!request.data.empty() || request.preset != "shakespeare") return request.data;
  const std::filesystem::path file = TRAIN_GPT_DATA_DIR "/input.txt";
  if (!std::filesystem::exists(file))
    throw nn::FileError(file.string() +
                        ": there is no such file; pass the text with --data (examples/README.md says where to get it)");
  return file;
}

void write_results(State& state, const Text& text, const Request& request, const Outcome& outcome) {
  if (!request.loss_curve.empty())
    training::write_file(request.loss_curve, training::loss_curve_svg(loss_curve(state), "Loss over steps"));
  if (!request.report.empty())
    training::write_file(request.report, training::report_html(report(state, text, outcome)));
}

/// Returns the text of a resumed run: the file that the run began with, or the one that --data names.
Text text_of(const State& state, const Request& request) {
  if (!request.data.empty()) return Text(request.data);
  std::error_code none;
  if (!state.text_file.empty() && !std::filesystem::exists(state.text_file, none))
    throw nn::FileError(state.text_file + ": there is no such file, but the run trains on it; pass it with --data");
  return Text(state.text_file);
}

/// Announces that a large file is being read, which takes seconds.
void announce(const std::filesystem::path& file) {
  std::error_code none;
  const auto bytes = file.empty() ? 0 : std::filesystem::file_size(file, none);
  if (!none && bytes > 10'000'000)
    std::cerr << "reading " << bytes / 1'000'000 << " MB of " << nn::as_line(file.string()) << '\n';
}

/// Returns the state of a new or resumed run, and its text.
std::pair<State, Text> begin(const Request& request, const Ranks& ranks) {
  const auto announce_once = [&](const std::filesystem::path& file) {
    if (ranks.is_first()) announce(file);
  };
  if (request.resume.empty()) {
    const std::filesystem::path data = data_of(request);
    announce_once(data);
    Text text(data);
    return {State(request.options, text), std::move(text)};
  }
  State state = load(request.resume);
  announce_once(request.data.empty() ? std::filesystem::path(state.text_file) : request.data);
  Text text = text_of(state, request);
  state.text_file = text.file().string();
  return {std::move(state), std::move(text)};
}

/// Checks that the output files can be written and that none of them is an input file.
void require_files(const Request& request) {
  const std::filesystem::path other = request.resume == request.run.save ? "" : request.resume;
  training::require_writable(
      {{"--save", request.run.save}, {"--loss-curve", request.loss_curve}, {"--report", request.report}},
      {{"--data", request.data}, {"--resume", other}}, kCheckpointFormat);
}

int train(const Request& request, Ranks& ranks) {
  auto [state, text] = begin(request, ranks);
  if (ranks.is_first()) require_files(request);
  require_known(request.prompt, state.vocabulary);
  if (request.save_is_new && ranks.is_first())
    std::cerr << "gpt.safetensors already exists: this run is saved to " << request.run.save.string() << '\n';
  const Outcome outcome = run(state, text, request.run, ranks);
  if (!ranks.is_first()) return outcome.exit_code;
  write_results(state, text, request, outcome);
  if (outcome.interrupted) {
    std::cerr << "train_gpt: stopped after " << state.step << " of " << state.options.steps << " steps, "
              << (request.run.save.empty() ? "nothing was saved"
                                           : "continue with --resume " + request.run.save.string())
              << '\n';
    return outcome.exit_code;
  }
  generate(state, request);
  if (outcome.steps < state.step)
    std::cerr << "the time is that of the last " << outcome.steps << " steps, since --resume\n";
  write("validation loss " + training::fixed(outcome.validation_loss, 3) + " after " + std::to_string(state.step) +
        " steps in " + training::fixed(outcome.seconds, 1) + " s\n");
  return EXIT_SUCCESS;
}

int generate_only(const Request& request) {
  const State state = load(request.model);
  require_known(request.prompt, state.vocabulary);
  generate(state, request);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  const auto program = [&](Ranks& ranks) {
    std::ostream nowhere(nullptr);
    const std::optional<Request> request = parse(argc, argv, ranks.is_first() ? std::cout : nowhere);
    if (!request) return EXIT_SUCCESS;
    nn::keep_memory();
    if (request->threads) nn::set_threads(*request->threads);
    return request->model.empty() ? train(*request, ranks) : generate_only(*request);
  };
  if (asks_for_ranks(argc, argv)) return run_over_ranks(argc, argv, program);
  return training::run_program("train_gpt", [&] {
    Ranks alone;
    return program(alone);
  });
}
