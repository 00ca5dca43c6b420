// A training run as a file, from which it goes on as if it had never stopped; also what generation reads.
#pragma once

#include <filesystem>

#include "trainer.h"

namespace train_gpt {

/// One file of safetensors: the model's parameters under their names, AdamW's moments with "m." and "v." before these,
/// and the losses. Everything else is text of its metadata. The same state makes the same bytes.
/// @throws nn::FileError
void save(const std::filesystem::path& file, State& state);

/// The file is not trusted: memory is taken only for what it holds. @throws nn::FileError
State load(const std::filesystem::path& file);

}  // namespace train_gpt
