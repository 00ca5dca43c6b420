#include "translator.h"

#include <functional>
#include <stdexcept>

#include "memory.h"
#include "safetensors.h"

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

/// Returns a lower bound on a model's number of parameters: the elements of its matrices.
double least_numbers(const Characters& from, const Pieces& to, const Sizes& s) {
  const auto features = static_cast<double>(s.features), hidden = static_cast<double>(s.hidden);
  const double attention = 4 * features * features, feed_forward = 2 * features * hidden;
  return static_cast<double>(from.size() + to.size()) * features +
         static_cast<double>(s.encoder_layers) * (attention + feed_forward) +
         static_cast<double>(s.decoder_layers) * (2 * attention + feed_forward);
}

nn::TransformerConfig config_of(const Characters& from, const Pieces& to, const Sizes& sizes, double dropout) {
  // In training, each parameter also has a gradient and two moments of AdamW.
  training::require_memory(4 * sizeof(float) * least_numbers(from, to, sizes));
  return {.source_tokens = from.size(),
          .target_tokens = to.size(),
          .encoder_layers = sizes.encoder_layers,
          .decoder_layers = sizes.decoder_layers,
          .layer = {.features = sizes.features, .heads = sizes.heads, .hidden = sizes.hidden, .dropout = dropout}};
}

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

Translator::Translator(Characters from, Pieces to, const Sizes& sizes, double dropout, std::uint64_t seed)
    : characters(std::move(from)), pieces(std::move(to)), model(config_of(characters, pieces, sizes, dropout), seed) {}

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
