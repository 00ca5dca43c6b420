#include "translator.h"

#include "memory.h"

namespace translation {

namespace {

nn::TransformerConfig config_of(const Characters& from, const Pieces& to, const Sizes& sizes, double dropout) {
  // In training, each parameter also has a gradient and two moments of AdamW.
  training::require_memory(4 * sizeof(float) * least_numbers(from, to, sizes));
  return {.source_tokens = from.size(),
          .target_tokens = to.size(),
          .encoder_layers = sizes.encoder_layers,
          .decoder_layers = sizes.decoder_layers,
          .layer = {.features = sizes.features, .heads = sizes.heads, .hidden = sizes.hidden, .dropout = dropout}};
}

}  // namespace

double least_numbers(const Characters& from, const Pieces& to, const Sizes& s) {
  const auto features = static_cast<double>(s.features), hidden = static_cast<double>(s.hidden);
  const double attention = 4 * features * features, feed_forward = 2 * features * hidden;
  return static_cast<double>(from.size() + to.size()) * features +
         static_cast<double>(s.encoder_layers) * (attention + feed_forward) +
         static_cast<double>(s.decoder_layers) * (2 * attention + feed_forward);
}

Translator::Translator(Characters from, Pieces to, const Sizes& sizes, double dropout, std::uint64_t seed)
    : characters(std::move(from)), pieces(std::move(to)), model(config_of(characters, pieces, sizes, dropout), seed) {}

}  // namespace translation
