// A translator's file.
#include <filesystem>
#include <stdexcept>
#include <string>

#include "safetensors.h"
#include "translator.h"

namespace translation {

namespace {

constexpr Index kVersion = 1;

struct Field {
  const char* name;
  Index Sizes::*size;
  Index most;
};

constexpr Field kFields[] = {{"encoder_layers", &Sizes::encoder_layers, 100},
                             {"decoder_layers", &Sizes::decoder_layers, 100},
                             {"features", &Sizes::features, 1 << 14},
                             {"heads", &Sizes::heads, 1 << 10},
                             {"hidden", &Sizes::hidden, 1 << 16}};

/// Parses an entry of the metadata; errors name the file and the entry.
template <class F>
auto read_text(const nn::SafeTensors& tensors, const std::filesystem::path& file, const std::string& key, const F& f) {
  try {
    return f(tensors.text(key));
  } catch (const std::invalid_argument& error) {
    throw nn::FileError(file.string() + ": its \"" + key + "\": " + error.what());
  }
}

}  // namespace

void Translator::save(const std::filesystem::path& file) {
  const nn::TransformerConfig& c = model.config();
  const Sizes sizes{c.encoder_layers, c.decoder_layers, c.layer.features, c.layer.heads, c.layer.hidden};
  nn::Metadata metadata{{"format", kModelFormat},
                        {"version", std::to_string(kVersion)},
                        {"characters", characters.text()},
                        {"merges", pieces.merges()}};
  for (const Field& field : kFields) metadata[field.name] = std::to_string(sizes.*field.size);
  nn::save_safetensors(file, nn::parameters_of<float>(model), metadata);
}

Translator Translator::load(const std::filesystem::path& file) {
  const nn::SafeTensors tensors(file);
  if (!tensors.metadata().contains("format") || tensors.text("format") != kModelFormat)
    throw nn::FileError(file.string() + ": is not a model of train_translation");
  tensors.number("version", kVersion, kVersion);
  Sizes sizes;
  for (const Field& field : kFields) sizes.*field.size = tensors.number(field.name, 1, field.most);
  if (sizes.features % sizes.heads != 0)
    throw nn::FileError(file.string() + ": its features are not a multiple of its heads");
  Characters characters =
      read_text(tensors, file, "characters", [](const std::string& text) { return Characters::from_text(text); });
  Pieces pieces = read_text(tensors, file, "merges", [](const std::string& text) { return Pieces::from_merges(text); });
  // Checked before memory is allocated. (Values have at least 4 bytes.)
  if (4 * least_numbers(characters, pieces, sizes) > static_cast<double>(std::filesystem::file_size(file)))
    throw nn::FileError(file.string() + ": is too small for the sizes that it states");
  try {
    Translator translator(std::move(characters), std::move(pieces), sizes, 0, 0);
    tensors.load(nn::parameters_of<float>(translator.model));
    return translator;
  } catch (const std::invalid_argument& error) {
    throw nn::FileError(file.string() + ": " + error.what());
  }
}

}  // namespace translation
