// train_gpt: a GPT that learns to write from any text, character by character.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "arguments.h"
#include "checkpoint.h"
#include "files.h"
#include "run_report.h"
#include "safetensors.h"
#include "threads.h"

namespace {

using namespace train_gpt;

void write(std::string_view text) {
  if (!(std::cout << text << std::flush)) throw std::runtime_error("standard output cannot be written");
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

/// The text that a new run begins with.
std::filesystem::path data_of(const Request& request) {
  if (!request.data.empty() || request.preset != "shakespeare") return request.data;
  const std::filesystem::path file = TRAIN_GPT_DATA_DIR "/input.txt";
  if (!std::filesystem::exists(file))
    throw nn::FileError(file.string() +
                        ": there is no such file; name the text with --data (examples/README.md says where to get it)");
  return file;
}

void write_results(State& state, const Text& text, const Request& request, const Outcome& outcome) {
  if (!request.loss_curve.empty())
    training::write_file(request.loss_curve, training::loss_curve_svg(loss_curve(state), "Loss over steps"));
  if (!request.report.empty())
    training::write_file(request.report, training::report_html(report(state, text, outcome)));
}

int train(const Request& request) {
  // Not to be found out at the end of a long run.
  for (const auto& file : {request.run.save, request.loss_curve, request.report})
    if (!file.empty()) training::require_writable(file);

  const bool resumes = !request.resume.empty();
  std::optional<State> state;
  if (resumes) state.emplace(load(request.resume));
  const Text text(resumes && request.data.empty() ? std::filesystem::path(state->text_file) : data_of(request));
  if (!resumes) state.emplace(request.options, text);
  require_known(request.prompt, state->vocabulary);
  const Outcome outcome = run(*state, text, request.run);
  write_results(*state, text, request, outcome);
  if (outcome.interrupted) {
    std::cerr << "train_gpt: stopped after " << state->step << " of " << state->options.steps << " steps, "
              << (request.run.save.empty() ? "nothing was saved" : "go on with --resume " + request.run.save.string())
              << '\n';
    return outcome.exit_code;
  }
  generate(*state, request);
  char line[120];
  std::snprintf(line, sizeof line, "validation loss %.3f after %td steps in %.1f s\n", outcome.validation_loss,
                state->step, outcome.seconds);
  write(line);
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
  try {
    const std::optional<Request> request = parse(argc, argv);
    if (!request) return EXIT_SUCCESS;
    nn::keep_memory();
    if (request->threads) nn::set_threads(*request->threads);
    return request->model.empty() ? train(*request) : generate_only(*request);
  } catch (const std::bad_alloc&) {
    std::cerr << "train_gpt: there is not enough memory for a model of these sizes\n";
  } catch (const std::exception& error) {
    std::cerr << "train_gpt: " << error.what() << '\n';
  }
  return EXIT_FAILURE;
}
