// A model with its vocabularies, and its file.
#pragma once

#include <filesystem>

#include "characters.h"
#include "pieces.h"
#include "transformer.h"

namespace translation {

/// The text "format" of a model's metadata.
inline constexpr const char* kModelFormat = "attn translation";

struct Sizes {
  Index encoder_layers = 2, decoder_layers = 2;
  Index features = 64, heads = 4, hidden = 256;
};

struct Translator {
  /// @throws std::invalid_argument if no machine like this holds a model of these sizes.
  Translator(Characters from, Pieces to, const Sizes& sizes, double dropout, std::uint64_t seed);

  /// Saves the model as one file of the format safetensors, whose metadata have the sizes and both vocabularies. If
  /// this fails, a file that is there already stays as it is. @throws nn::FileError
  void save(const std::filesystem::path& file);
  /// @throws nn::FileError if the file cannot be read, or is no such model, whole and of finite numbers.
  static Translator load(const std::filesystem::path& file);

  Characters characters;
  Pieces pieces;
  nn::Transformer<float> model;
};

}  // namespace translation
