// Checkpoints: files from which a training run resumes with the same results, and which text generation reads.
#pragma once

#include <filesystem>

#include "trainer.h"

namespace train_gpt {

/// The entry "format" of a checkpoint's metadata.
inline constexpr const char* kCheckpointFormat = "train_gpt";

/// Saves a run as one safetensors file: the model's parameters under their names, AdamW's moments with the prefixes
/// "m." and "v.", and the losses. The metadata holds everything else. Equal states give equal bytes.
/// @throws nn::FileError
void save(const std::filesystem::path& file, State& state);

/// Loads a run from an untrusted file: all sizes are checked against that of the file before a model is allocated.
/// @throws nn::FileError
State load(const std::filesystem::path& file);

}  // namespace train_gpt
