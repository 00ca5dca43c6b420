// A model in training.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "adamw.h"
#include "gpt.h"
#include "options.h"
#include "ranks.h"
#include "text.h"

namespace train_gpt {

/// The bytes that each number of a model takes in training: the number, its gradient and the two moments of AdamW.
inline constexpr double kBytesEach = 4 * sizeof(float);

/// How many numbers a model learns in its matrices, which are nearly all.
double numbers_of(const nn::GptConfig& model);

/// All that the next step depends on, beside the text. A checkpoint keeps it.
struct State {
  /// The state before the first step. @throws std::invalid_argument as check() does, and if no machine like this holds
  /// the model.
  State(const Options& options, Vocabulary vocabulary);
  State(const Options& options, const Text& text);

  Options options;
  Vocabulary vocabulary;
  std::string text_file;            ///< empty: the project's own text
  std::uint64_t text_checksum = 0;  ///< a run goes on with the same text alone
  nn::Gpt<float> model;
  nn::AdamW<float> optimizer;
  nn::Random random;  ///< draws the blocks

  Index step = 0;                        ///< how many steps are done
  std::vector<float> losses;             ///< of each step
  std::map<Index, float> validation;     ///< losses, by the number of steps done
  std::map<Index, std::string> samples;  ///< what the model wrote, by the number of steps done
};

/// Takes one step of AdamW on blocks from anywhere in the training text. Returns the loss, and keeps it. Ranks share
/// the blocks out, which are the same for any number of them, and so are the numbers that dropout takes: loss and
/// gradients differ from those of one rank by rounding.
/// @throws std::runtime_error if the loss is not finite.
double train_step(State& state, const Text& text, Ranks& ranks);
double train_step(State& state, const Text& text);

/// @throws std::invalid_argument if a batch has no text for some of the ranks.
void require_texts_for(const Ranks& ranks, const Options& options);

/// The mean loss over blocks that lie one behind the other in the validation text: over all of them, or, if these are
/// more than `most`, over that many, evenly spread.
double validation_loss(const State& state, const Text& text, Index most = 0);

}  // namespace train_gpt
