// Trained models in files.
#pragma once

#include <filesystem>

#include "hybrid_options.h"
#include "vocabulary.h"

namespace train_hybrid {

/// The entry "format" of the file's metadata.
inline constexpr const char* kFormat = "train_hybrid";

/// A model and its characters.
struct LanguageModel {
  /// Creates a model with random parameters; the characters determine its number of tokens.
  /// @throws std::invalid_argument as check() does, and if the machine has too little memory.
  LanguageModel(nn::HybridConfig config, train_gpt::Vocabulary vocabulary, std::uint64_t seed);

  train_gpt::Vocabulary vocabulary;
  nn::Hybrid<float> network;
};

/// Saves a model as a safetensors file whose metadata has its sizes and characters. @throws nn::FileError
void save(const std::filesystem::path& file, LanguageModel& model);

/// Loads a model from an untrusted file: sizes are checked against that of the file before memory is allocated.
/// @throws nn::FileError
LanguageModel load(const std::filesystem::path& file);

}  // namespace train_hybrid
