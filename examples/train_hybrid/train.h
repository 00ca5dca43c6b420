// Training of a hybrid model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model_file.h"
#include "text.h"

namespace train_hybrid {

/// What a training run reports.
struct Outcome {
  bool interrupted = false;
  int exit_code = 0;  ///< after an interrupt
  double seconds = 0, tokens_per_second = 0;
  std::vector<double> losses;            ///< of each step
  std::map<Index, double> validation;    ///< losses, by the number of steps done
  std::map<Index, std::string> samples;  ///< generated text, by the number of steps done
};

/// Trains on blocks from random positions of the text, until all steps are done or an interrupt is requested. Shows the
/// progress on standard error.
/// @throws std::runtime_error if the loss is not finite, nn::FileError if the text is too short.
Outcome train(LanguageModel& model, const train_gpt::Text& text, const Options& options);

}  // namespace train_hybrid
