// The encoder–decoder network: attention from attn, the other layers from layers.h.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "layers.h"
#include "model_file.h"
#include "vocabulary.h"

namespace transliterate {

/// Self-attention over the source, then feed-forward; both are pre-norm and add to their input.
class EncoderLayer {
 public:
  EncoderLayer(ModelFile& file, const std::string& prefix, attn::Index width);
  void apply(States& x, const std::vector<attn::Index>& lengths, attn::Path path) const;

 private:
  LayerNorm norm_;
  attn::MultiHeadAttention<float> attention_;
  FeedForward feed_forward_;
};

/// The encoder's result for a batch: a vector for each letter, and the number of letters in each row (the rest is
/// padding).
struct Encoded {
  States states;
  std::vector<attn::Index> lengths;
};

/// A layer of the decoder: causal self-attention over the target so far, attention to the source, feed-forward.
class DecoderLayer {
 public:
  DecoderLayer(ModelFile& file, const std::string& prefix, attn::Index width);

  /// Returns the weights of the attention to the source, (batch, heads, target, source); empty unless requested.
  attn::Tensor<float, 4> apply(States& x, const Encoded& source, attn::Path path, bool weights) const;

 private:
  LayerNorm self_norm_;
  attn::MultiHeadAttention<float> self_attention_;
  LayerNorm cross_norm_;
  attn::MultiHeadAttention<float> cross_attention_;
  FeedForward feed_forward_;
};

/// Logits of the token after each token of each target, (batch, len, tokens), and, if requested, the weights of the
/// last layer's attention to the source, (batch, heads, len, source len).
struct Decoded {
  States logits;
  attn::Tensor<float, 4> weights;
};

/// The trained network. Calls are const and may run concurrently.
class Transformer {
 public:
  /// Infers the width, number of layers and sizes of vocabularies from the file's variables.
  /// @throws FileError if a variable is missing, superfluous or of a shape that contradicts the others.
  explicit Transformer(ModelFile& file);

  attn::Index source_tokens() const { return source_embedding_.tokens(); }
  attn::Index target_tokens() const { return target_embedding_.tokens(); }

  /// Encodes a batch. Sources of different lengths are padded to the longest; padding changes no result.
  Encoded encode(const std::vector<Tokens>& sources, attn::Path path) const;

  /// Decodes a batch.
  /// @param targets  known tokens of each target, <s> first; padded like sources. Rows after a target's end are
  /// meaningless.
  Decoded decode(const Encoded& source, const std::vector<Tokens>& targets, attn::Path path,
                 bool weights = false) const;

 private:
  Embedding source_embedding_, target_embedding_;
  std::vector<EncoderLayer> encoder_;
  std::vector<DecoderLayer> decoder_;
  LayerNorm encoder_norm_, decoder_norm_;
  Linear projection_;
};

/// A network and its vocabularies.
struct Model {
  Transformer network;
  Vocabulary source, target;

  /// Reads model.bin, source_vocabulary.txt and target_vocabulary.txt from a folder.
  /// @throws FileError if one of them is not valid, or they do not match each other.
  static Model load(const std::filesystem::path& folder);
};

}  // namespace transliterate
