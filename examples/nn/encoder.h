// An encoder-only model, like BERT (Devlin et al. 2019): every token attends to every other.
#pragma once

#include "embedding.h"
#include "stacks.h"

namespace nn {

struct EncoderConfig {
  Index tokens = 0;   ///< vocabulary size
  Index context = 0;  ///< longest sequence, in tokens
  Index layers = 2;
  LayerConfig layer;
};

/// Scores every token of the vocabulary at every position, given the tokens on both sides: to predict masked tokens,
/// for example. The output layer is the table of token vectors.
template <class T>
class Encoder {
 public:
  Encoder(const EncoderConfig& config, std::uint64_t seed);

  /// Returns logits (batch, len, tokens). In sequence i, the tokens from lengths[i] on are padding.
  States<T> operator()(const Tokens& tokens, const std::vector<Index>& lengths) const;
  States<T> forward(const Tokens& tokens, const std::vector<Index>& lengths);
  void backward(const States<T>& grad_logits);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    encoder_.visit_dropouts(f);
  }

 private:
  Random random_;  // draws the initial values
  Embedding<T> tokens_;
  LearnedPositions<T> positions_;
  TransformerEncoder<T> encoder_;
};

}  // namespace nn
