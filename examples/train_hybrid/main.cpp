// train_hybrid: trains a hybrid of gated DeltaNets and gated attention on any text, and generates text with it.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "arguments.h"
#include "continue_text.h"
#include "decimals.h"
#include "files.h"
#include "new_file.h"
#include "program.h"
#include "report.h"
#include "threads.h"
#include "train.h"

namespace {

using namespace train_hybrid;
using training::fixed;
using training::grouped;

/// Writes text to standard output. A file gets the characters as generated; a terminal gets control characters
/// replaced, because it would interpret them.
void write(std::string_view text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (!(std::cout << (terminal ? nn::as_text(text) : text) << std::flush))
    throw std::runtime_error("standard output cannot be written");
}

void require_known(const std::string& prompt, const train_gpt::Vocabulary& vocabulary) {
  try {
    vocabulary.encode(prompt);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--prompt: ") + error.what());
  }
}

/// Continues the prompt on standard output, and prints the speed on standard error.
void generate(const LanguageModel& model, const Request& request) {
  if (request.length == 0) return;
  write(request.prompt);
  const auto begin = std::chrono::steady_clock::now();
  continue_text(model, request.prompt, request.length, request.sampling, write);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  write("\n");
  std::cerr << "wrote " << request.length << " characters, "
            << fixed(static_cast<double>(request.length) / std::max(seconds, 1e-9), 0) << " per second\n";
}

/// Returns the file of the text to train on.
std::filesystem::path data_of(const Request& request) {
  if (!request.data.empty()) return request.data;
  const std::filesystem::path file = TRAIN_HYBRID_DATA_DIR "/input.txt";
  if (!std::filesystem::exists(file))
    throw nn::FileError(file.string() +
                        ": there is no such file; pass a text with --data (examples/README.md says where to get it)");
  return file;
}

training::LossCurve loss_curve(const Outcome& run) {
  training::LossCurve curve{run.losses, {}};
  for (const auto& [step, loss] : run.validation) curve.validation.push_back({step, loss});
  return curve;
}

training::Report report(const Outcome& run, const train_gpt::Text& text, LanguageModel& model) {
  const nn::HybridConfig& c = model.network.config();
  training::Report page{
      .title = "A hybrid of DeltaNets and attention learns to write",
      .introduction = "Trained on " + text.file().filename().string() + ", character by character.",
      .summary = {{"validation loss", fixed(run.validation.rbegin()->second, 3)},
                  {"steps", std::to_string(run.losses.size())},
                  {"time", fixed(run.seconds, 1) + " s"},
                  {"speed", grouped(static_cast<std::ptrdiff_t>(run.tokens_per_second)) + " characters/s"},
                  {"parameters", grouped(nn::count_parameters<float>(model.network))},
                  {"model", std::to_string(3 * c.blocks) + " DeltaNets, " + std::to_string(c.blocks) +
                                " attention layers, " + std::to_string(c.features) + " features"}},
      .losses = loss_curve(run),
      .samples = {},
      .maps = {}};
  for (const auto& [step, sample] : run.samples) page.samples.push_back({step, sample});
  return page;
}

int train_and_generate(const Request& request) {
  training::require_writable(
      {{"--save", request.save}, {"--loss-curve", request.loss_curve}, {"--report", request.report}},
      {{"--data", request.data}}, kFormat);
  const train_gpt::Text text(data_of(request));
  require_known(request.prompt, text.vocabulary());
  LanguageModel model(request.options.model, text.vocabulary(), request.options.seed);
  const Outcome run = train(model, text, request.options);
  if (!request.save.empty()) save(request.save, model);
  if (!request.loss_curve.empty())
    training::write_file(request.loss_curve, training::loss_curve_svg(loss_curve(run), "Loss over steps"));
  if (!request.report.empty()) training::write_file(request.report, training::report_html(report(run, text, model)));
  if (run.interrupted) {
    std::cerr << "train_hybrid: stopped after " << run.losses.size() << " of " << request.options.steps << " steps, "
              << (request.save.empty() ? "nothing was saved" : "the model is in " + request.save.string()) << '\n';
    return run.exit_code;
  }
  generate(model, request);
  write("validation loss " + fixed(run.validation.rbegin()->second, 3) + " after " + std::to_string(run.losses.size()) +
        " steps in " + fixed(run.seconds, 1) + " s\n");
  return EXIT_SUCCESS;
}

int generate_only(const Request& request) {
  const LanguageModel model = load(request.model);
  require_known(request.prompt, model.vocabulary);
  generate(model, request);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  return training::run_program("train_hybrid", [&] {
    const std::optional<Request> request = parse(argc, argv, std::cout);
    if (!request) return EXIT_SUCCESS;
    nn::keep_memory();
    if (request->threads) nn::set_threads(*request->threads);
    return request->model.empty() ? train_and_generate(*request) : generate_only(*request);
  });
}
