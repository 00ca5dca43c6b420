// A training run as a file, from which it goes on as if it had never stopped; also what generation reads.
#pragma once

#include <filesystem>

#include "trainer.h"

namespace train_gpt {

/// The text "format" of a checkpoint's metadata.
inline constexpr const char* kCheckpointFormat = "train_gpt";

/// Saves a run as one file of safetensors: the model's parameters under their names, AdamW's moments with "m." and "v."
/// before these, and the losses. Everything else is text of its metadata. The same state makes the same bytes.
/// @throws nn::FileError
void save(const std::filesystem::path& file, State& state);

/// Loads a run from a file that is not trusted: all sizes are checked against the file's own before memory is taken for
/// a model.
/// @throws nn::FileError
State load(const std::filesystem::path& file);

}  // namespace train_gpt
