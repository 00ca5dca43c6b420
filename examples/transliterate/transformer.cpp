#include "transformer.h"

namespace transliterate {

namespace {

/// Loads the layers of the encoder or decoder: those that the file has, numbered from 0.
template <class Layer>
std::vector<Layer> load_layers(ModelFile& file, const std::string& half, attn::Index width) {
  std::vector<Layer> layers;
  const auto prefix = [&] { return half + "/layer_" + std::to_string(layers.size()); };
  while (file.contains(prefix() + "/self_attention/linear_0/weight")) layers.emplace_back(file, prefix(), width);
  if (layers.empty()) throw FileError(file.name(), "there is no " + half + " layer");
  return layers;
}

Embedding load_target_embedding(ModelFile& file, attn::Index width) {
  const std::string variable = "decoder/embeddings/weight";
  file.matrix(variable, file.matrix(variable).dim(0), width);
  return Embedding(file, variable);
}

void require_same_size(const Vocabulary& vocabulary, attn::Index tokens, const std::string& half,
                       const std::string& model_file) {
  if (vocabulary.size() != tokens)
    throw FileError(vocabulary.file(), std::to_string(vocabulary.size() - 1) + " tokens and <unk>, but the " + half +
                                           " of " + model_file + " has embeddings for " + std::to_string(tokens));
}

}  // namespace

EncoderLayer::EncoderLayer(ModelFile& file, const std::string& prefix, attn::Index width)
    : norm_(file, prefix + "/self_attention/layer_norm", width),
      attention_(load_self_attention(file, prefix + "/self_attention", width)),
      feed_forward_(file, prefix + "/ffn", width) {}

void EncoderLayer::apply(States& x, const std::vector<attn::Index>& lengths, attn::Path path) const {
  const States y = norm_(x);
  const States seen = attention_(y, y, y, attn::key_lengths(lengths), attn::MultiHeadOptions{.path = path}).out;
  rows_of(x) += rows_of(seen);
  feed_forward_.add_to(x);
}

DecoderLayer::DecoderLayer(ModelFile& file, const std::string& prefix, attn::Index width)
    : self_norm_(file, prefix + "/self_attention/layer_norm", width),
      self_attention_(load_self_attention(file, prefix + "/self_attention", width)),
      cross_norm_(file, prefix + "/attention/layer_norm", width),
      cross_attention_(load_cross_attention(file, prefix + "/attention", width)),
      feed_forward_(file, prefix + "/ffn", width) {}

attn::Tensor<float, 4> DecoderLayer::apply(States& x, const Encoded& source, attn::Path path, bool weights) const {
  const States y = self_norm_(x);
  const States seen = self_attention_(y, y, y, attn::causal(), attn::MultiHeadOptions{.path = path}).out;
  rows_of(x) += rows_of(seen);

  const attn::MultiHeadOptions options{.path = path, .weights = weights};
  auto looked_up =
      cross_attention_(cross_norm_(x), source.states, source.states, attn::key_lengths(source.lengths), options);
  rows_of(x) += rows_of(std::as_const(looked_up.out));

  feed_forward_.add_to(x);
  return std::move(looked_up.weights);
}

Transformer::Transformer(ModelFile& file)
    : source_embedding_(file, "encoder/embeddings/weight"),
      target_embedding_(load_target_embedding(file, source_embedding_.width())),
      encoder_(load_layers<EncoderLayer>(file, "encoder", source_embedding_.width())),
      decoder_(load_layers<DecoderLayer>(file, "decoder", source_embedding_.width())),
      encoder_norm_(file, "encoder/layer_norm", source_embedding_.width()),
      decoder_norm_(file, "decoder/layer_norm", source_embedding_.width()),
      projection_(file, "decoder/projection", source_embedding_.width(), target_embedding_.tokens()) {
  file.require_all_used();
}

Encoded Transformer::encode(const std::vector<Tokens>& sources, attn::Path path) const {
  std::vector<attn::Index> lengths;
  for (const Tokens& source : sources) lengths.push_back(static_cast<attn::Index>(source.size()));
  States x = source_embedding_(sources);
  for (const EncoderLayer& layer : encoder_) layer.apply(x, lengths, path);
  return {encoder_norm_(x), std::move(lengths)};
}

Decoded Transformer::decode(const Encoded& source, const std::vector<Tokens>& targets, attn::Path path,
                            bool weights) const {
  States x = target_embedding_(targets);
  attn::Tensor<float, 4> last_weights;
  for (const DecoderLayer& layer : decoder_)
    last_weights = layer.apply(x, source, path, weights && &layer == &decoder_.back());
  const States normalised = decoder_norm_(x);
  States logits({x.dim(0), x.dim(1), target_tokens()});
  rows_of(logits) = projection_(rows_of(normalised));
  return {std::move(logits), std::move(last_weights)};
}

Model Model::load(const std::filesystem::path& folder) {
  ModelFile file = ModelFile::load(folder / "model.bin");
  Model model{Transformer(file), Vocabulary::load(folder / "source_vocabulary.txt"),
              Vocabulary::load(folder / "target_vocabulary.txt")};
  require_same_size(model.source, model.network.source_tokens(), "encoder", file.name());
  require_same_size(model.target, model.network.target_tokens(), "decoder", file.name());
  return model;
}

}  // namespace transliterate
