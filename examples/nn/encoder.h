// An encoder-only model, as BERT (Devlin et al. 2019): every token looks at every other.
#pragma once

#include "embedding.h"
#include "stacks.h"

namespace nn {

struct EncoderConfig {
  Index tokens = 0;   ///< different ones
  Index context = 0;  ///< the longest text, in tokens
  Index layers = 2;
  LayerConfig layer;
};

/// Scores every token for every place of a text, from what stands before and behind that place: what was masked there,
/// say. The output layer is the table of the tokens' vectors.
template <class T>
class Encoder {
 public:
  Encoder(const EncoderConfig& config, std::uint64_t seed);

  /// Logits (batch, len, tokens). Tokens from lengths[i] on are padding of text i.
  States<T> operator()(const Tokens& tokens, const std::vector<Index>& lengths) const;
  States<T> forward(const Tokens& tokens, const std::vector<Index>& lengths);
  void backward(const States<T>& grad_logits);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    encoder_.visit_dropouts(f);
  }

 private:
  Random random_;  // of the initial numbers
  Embedding<T> tokens_;
  LearnedPositions<T> positions_;
  TransformerEncoder<T> encoder_;
};

}  // namespace nn
