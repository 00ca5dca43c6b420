// The encoder–decoder model (Vaswani et al. 2017).
#pragma once

#include "embedding.h"
#include "stacks.h"

namespace nn {

struct TransformerConfig {
  Index source_tokens = 0, target_tokens = 0;  ///< vocabulary sizes
  Index encoder_layers = 2, decoder_layers = 2;
  LayerConfig layer;
};

/// Predicts the next token after each token of a target, given its source. Positions are sines and cosines; the output
/// layer is the table of target token vectors.
template <class T>
class Transformer {
 public:
  Transformer(const TransformerConfig& config, std::uint64_t seed);

  const TransformerConfig& config() const { return config_; }

  /// Returns the logits (batch, len, target_tokens) of the token after each token of the targets. `lengths` are those
  /// of the sources. Targets are padded at their ends, where logits are meaningless. `weights`, if given, receives the
  /// weights of each decoder layer's attention to the source.
  States<T> operator()(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets,
                       std::vector<Weights<T>>* weights = nullptr) const;

  /// State of a generation: the sources' keys and values, computed once, and those of the targets so far, which may
  /// have up to `capacity` tokens each. See generation.cpp. The sequences of `targets` may be reordered. Each source
  /// may have several consecutive targets: the beams of a search.
  struct State {
    Caches<T> sources, targets;
  };
  State encode(const Tokens& sources, const std::vector<Index>& lengths, Index capacity, Index targets_each = 1) const;
  States<T> next(const Tokens& targets, State& state) const;

  States<T> forward(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets);
  void backward(const States<T>& grad_logits);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    f(source_dropout_), f(target_dropout_);
    encoder_.visit_dropouts(f);
    decoder_.visit_dropouts(f);
  }

 private:
  TransformerConfig config_;
  Random random_;  // draws the initial values
  Embedding<T> source_tokens_, target_tokens_;
  Dropout<T> source_dropout_, target_dropout_;
  TransformerEncoder<T> encoder_;
  TransformerDecoder<T> decoder_;
  States<T> memory_;
};

}  // namespace nn
