// A training run: its steps, and what it shows and saves on the way.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer.h"

namespace train_gpt {

/// What does not change a run's numbers.
struct RunOptions {
  std::filesystem::path save;            ///< empty: nowhere
  std::optional<Index> stop_after = {};  ///< steps after which this run stops, although there are more
};

struct Outcome {
  bool interrupted = false;
  int exit_code = 0;   ///< after an interrupt
  Index steps = 0;     ///< of this run alone, without those before --resume; the time and the speed are theirs
  double seconds = 0;  ///< with validation losses and samples
  double tokens_per_second = 0;
  double validation_loss = 0;  ///< over all of the validation text; not after an interrupt
};

/// Trains until the options' number of steps is done, or an interrupt asks for an end, and saves in either case. Of
/// several ranks, the first alone shows, saves and validates; all must have the same state and text.
/// @throws nn::FileError if the text is not the one that the run began with, or the file cannot be written.
Outcome run(State& state, const Text& text, const RunOptions& options, Ranks& ranks);
Outcome run(State& state, const Text& text, const RunOptions& options);

}  // namespace train_gpt
