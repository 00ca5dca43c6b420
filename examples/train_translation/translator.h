// A model with its vocabularies, and the file that stores them.
#pragma once

#include <filesystem>

#include "characters.h"
#include "pieces.h"
#include "transformer.h"

namespace translation {

/// The entry "format" of a model's metadata.
inline constexpr const char* kModelFormat = "attn translation";

struct Sizes {
  Index encoder_layers = 2, decoder_layers = 2;
  Index features = 64, heads = 4, hidden = 256;
};

/// Returns a lower bound on a model's number of parameters: the elements of its matrices.
double least_numbers(const Characters& from, const Pieces& to, const Sizes& sizes);

struct Translator {
  /// @throws std::invalid_argument if the model needs more memory than the machine has.
  Translator(Characters from, Pieces to, const Sizes& sizes, double dropout, std::uint64_t seed);

  /// Saves the model as one safetensors file, whose metadata holds the sizes and both vocabularies. If this fails, an
  /// existing file stays as it is. @throws nn::FileError
  void save(const std::filesystem::path& file);
  /// Loads a model. @throws nn::FileError if the file cannot be read, is not such a model, is truncated, or holds a
  /// value that is not finite.
  static Translator load(const std::filesystem::path& file);

  Characters characters;
  Pieces pieces;
  nn::Transformer<float> model;
};

}  // namespace translation
