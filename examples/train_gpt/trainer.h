// The state and the steps of training.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "adamw.h"
#include "gpt.h"
#include "options.h"
#include "ranks.h"
#include "text.h"

namespace train_gpt {

/// Bytes of training memory per parameter: its value, its gradient and the two moments of AdamW.
inline constexpr double kBytesPerParameter = 4 * sizeof(float);

/// Returns the number of elements of the model's matrices, which are nearly all of its parameters.
double matrix_elements(const nn::GptConfig& model);

/// Everything that the next step depends on, except the text. A checkpoint stores it.
struct State {
  /// Creates the state before the first step. @throws std::invalid_argument as check() does, and if the model needs
  /// more memory than the machine has.
  State(const Options& options, Vocabulary vocabulary);
  State(const Options& options, const Text& text);

  Options options;
  Vocabulary vocabulary;
  std::string text_file;            ///< empty: the project's own text
  std::uint64_t text_checksum = 0;  ///< a run resumes only with the same text
  nn::Gpt<float> model;
  nn::AdamW<float> optimizer;
  nn::Random random;  ///< draws the blocks

  Index step = 0;                        ///< steps done
  std::vector<float> losses;             ///< of each step
  std::map<Index, float> validation;     ///< losses, by the number of steps done
  std::map<Index, std::string> samples;  ///< generated text, by the number of steps done
};

/// Takes one step of AdamW on blocks from random positions of the training text. Returns the loss, and appends it to
/// state.losses. The blocks are distributed over the ranks. Blocks and dropout do not depend on the number of ranks, so
/// that loss and gradients differ from those of one rank only by rounding.
/// @throws std::runtime_error if the loss is not finite.
double train_step(State& state, const Text& text, Ranks& ranks);
double train_step(State& state, const Text& text);

/// Checks that a batch has a sequence for each rank. @throws std::invalid_argument if it has not.
void require_sequences_for(const Ranks& ranks, const Options& options);

/// Returns the mean loss over consecutive blocks of the validation text: all of them, or, if there are more, `most`
/// evenly spread ones.
double validation_loss(const State& state, const Text& text, Index most = 0);
/// As above, for any model that predicts logits (batch, len, tokens) from blocks of `context` characters.
double validation_loss(const std::function<nn::States<float>(const nn::Tokens&)>& model, const Text& text,
                       Index context, Index most = 0);

}  // namespace train_gpt
