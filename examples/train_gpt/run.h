// A training run: its steps, and the output and files that it produces.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer.h"

namespace train_gpt {

/// Options that do not change a run's results.
struct RunOptions {
  std::filesystem::path save;            ///< checkpoint file; empty: none
  std::optional<Index> stop_after = {};  ///< stop after this many steps of this run, even if more are due
};

struct Outcome {
  bool interrupted = false;
  int exit_code = 0;  ///< after an interrupt
  // The steps, seconds and rate are those of this run alone, without the steps before --resume.
  Index steps = 0;
  double seconds = 0;  ///< including validation losses and samples
  double tokens_per_second = 0;
  double validation_loss = 0;  ///< over the whole validation text; not computed after an interrupt
};

/// Trains until all steps are done or an interrupt is requested, and saves in either case. With several ranks, only the
/// first prints, saves and validates; all must have the same state and text.
/// @throws nn::FileError if the text is not the one that the run began with, or the file cannot be written.
Outcome run(State& state, const Text& text, const RunOptions& options, Ranks& ranks);
Outcome run(State& state, const Text& text, const RunOptions& options);

}  // namespace train_gpt
