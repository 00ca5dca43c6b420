// Generates text with a trained model.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "generate.h"
#include "model_file.h"

namespace train_hybrid {

/// Continues the prompt by `length` characters and returns these; `write` receives each as it is generated. The prompt
/// is processed in one call, and then each character by itself: the DeltaNets keep states of constant size, and the
/// attention layers keep the keys and values of all characters. An empty prompt means the start of a line. The same
/// seed gives the same text.
/// @throws std::invalid_argument if the prompt is not UTF-8, or has a character that the model does not know.
std::string continue_text(const LanguageModel& model, std::string_view prompt, Index length,
                          const train_gpt::Sampling& sampling, const std::function<void(std::string_view)>& write = {});

}  // namespace train_hybrid
