#include "run.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "checkpoint.h"
#include "generate.h"
#include "interrupt.h"
#include "progress.h"
#include "safetensors.h"

namespace train_gpt {

namespace {

constexpr Index kValidationBlocks = 100;  // while it learns
constexpr Index kSampleLength = 200;

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) result += c == '\n' ? "\n  " : std::string(1, c);
  return result;
}

bool due(Index step, Index every, Index steps) { return every > 0 && (step % every == 0 || step == steps); }

void validate(State& state, const Text& text, training::Progress& progress) {
  const auto loss = static_cast<float>(validation_loss(state, text, kValidationBlocks));
  state.validation[state.step] = loss;
  char line[80];
  std::snprintf(line, sizeof line, "step %td: validation loss %.3f", state.step, static_cast<double>(loss));
  progress.say(line);
}

/// The state alone decides what is written, so that a run that was resumed keeps the same samples.
void sample(State& state, training::Progress& progress) {
  std::string& text = state.samples[state.step];
  text = continue_text(state.model, state.vocabulary, "", kSampleLength, {.seed = state.options.seed});
  progress.say("step " + std::to_string(state.step) + " writes:\n" + indented(text));
}

}  // namespace

Outcome run(State& state, const Text& text, const RunOptions& options) {
  const Options& o = state.options;
  if (text.checksum() != state.text_checksum)
    throw nn::FileError(text.name() + ": is not the text that the run began with");
  text.require_blocks_of(o.model.context);

  const training::Interrupt interrupt;
  training::Progress progress(o.steps, state.step);
  progress.say(text.name() + ": " + std::to_string(text.size()) + " characters, " +
               std::to_string(state.vocabulary.size()) +
               " different ones. Model: " + std::to_string(nn::count_parameters<float>(state.model)) + " parameters.");
  const Index last = options.stop_after ? std::min(o.steps, state.step + *options.stop_after) : o.steps;
  const auto save_if_wanted = [&] {
    if (!options.save.empty()) save(options.save, state);
  };
  while (state.step < last && !interrupt.requested()) {
    const double loss = train_step(state, text);
    progress.update(state.step, loss, o.batch * o.model.context);
    if (due(state.step, o.validation_every, o.steps)) validate(state, text, progress);
    if (due(state.step, o.sample_every, o.steps)) sample(state, progress);
    if (due(state.step, o.validation_every, o.steps)) save_if_wanted();
  }
  progress.finish();
  save_if_wanted();

  Outcome outcome{.interrupted = interrupt.requested(), .tokens_per_second = progress.tokens_per_second()};
  if (outcome.interrupted)
    outcome.exit_code = interrupt.exit_code();
  else
    outcome.validation_loss = validation_loss(state, text);
  outcome.seconds = progress.seconds();
  return outcome;
}

}  // namespace train_gpt
