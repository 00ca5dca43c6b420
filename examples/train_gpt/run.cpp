#include "run.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <stdexcept>

#include "checkpoint.h"
#include "decimals.h"
#include "generate.h"
#include "interrupt.h"
#include "new_file.h"
#include "printable.h"
#include "progress.h"

namespace train_gpt {

namespace {

constexpr Index kValidationBlocks = 100;  // during training
constexpr Index kSampleLength = 200;
constexpr std::size_t kMostSamples = 1000;  // stored per run, more than a reader will step through

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) result += c == '\n' ? "\n  " : std::string(1, c);
  return result;
}

bool due(Index step, Index every, Index steps) { return every > 0 && (step % every == 0 || step == steps); }

void validate(State& state, const Text& text, training::Progress& progress) {
  const auto loss = static_cast<float>(validation_loss(state, text, kValidationBlocks));
  state.validation[state.step] = loss;
  progress.say("step " + std::to_string(state.step) + ": validation loss " +
               training::fixed(static_cast<double>(loss), 3));
}

/// Depends only on the state, so that a resumed run stores the same samples.
void sample(State& state, training::Progress& progress) {
  std::string& text = state.samples[state.step];
  text = continue_text(state.model, state.vocabulary, "", kSampleLength, {.seed = state.options.seed});
  if (state.samples.size() > kMostSamples) {
    bool drop = true;  // every second one, but neither the first nor the last
    std::erase_if(state.samples, [&](const auto&) { return drop = !drop; });
  }
  progress.say("step " + std::to_string(state.step) + " writes:\n" + indented(nn::as_text(text)));
}

}  // namespace

Outcome run(State& state, const Text& text, const RunOptions& options) {
  Ranks alone;
  return run(state, text, options, alone);
}

Outcome run(State& state, const Text& text, const RunOptions& options, Ranks& ranks) {
  const Options& o = state.options;
  if (text.checksum() != state.text_checksum)
    throw nn::FileError(text.name() + ": is not the text that the run started with");
  text.require_blocks_of(o.model.context);
  require_sequences_for(ranks, o);

  const training::Interrupt interrupt;
  const Index first = state.step;
  std::ostream nowhere(nullptr);
  training::Progress progress(o.steps, state.step, ranks.is_first() ? std::cerr : nowhere,
                              ranks.is_first() && training::standard_error_is_terminal());
  progress.say(text.name() + ": " + std::to_string(text.size()) + " characters, " +
               std::to_string(state.vocabulary.size()) +
               " distinct. Model: " + std::to_string(nn::count_parameters<float>(state.model)) + " parameters.");
  const Index last = options.stop_after ? std::min(o.steps, state.step + *options.stop_after) : o.steps;
  const auto save_if_wanted = [&] {
    if (ranks.is_first() && !options.save.empty()) save(options.save, state);
  };
  // Ranks learn of an interrupt at different times, but must take the same steps.
  bool interrupted = false;
  while (!(interrupted = ranks.any(interrupt.requested())) && state.step < last) {
    const double loss = train_step(state, text, ranks);
    progress.update(state.step, loss, o.batch * o.model.context);
    if (!ranks.is_first()) continue;
    if (due(state.step, o.validation_every, o.steps)) validate(state, text, progress);
    if (due(state.step, o.sample_every, o.steps)) sample(state, progress);
    if (due(state.step, o.validation_every, o.steps)) save_if_wanted();
  }
  progress.finish();
  save_if_wanted();

  Outcome outcome{.interrupted = interrupted || interrupt.requested(),
                  .steps = state.step - first,
                  .tokens_per_second = progress.tokens_per_second()};
  if (outcome.interrupted)
    outcome.exit_code = interrupt.requested() ? interrupt.exit_code() : 128 + SIGINT;
  else if (ranks.is_first())
    outcome.validation_loss = validation_loss(state, text);
  outcome.seconds = progress.seconds();
  return outcome;
}

}  // namespace train_gpt
