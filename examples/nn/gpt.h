// A decoder-only model: GPT (Radford et al. 2019), built from GptBlocks.
#pragma once

#include "embedding.h"
#include "stacks.h"

namespace nn {

struct GptConfig {
  Index tokens = 0;   ///< vocabulary size
  Index context = 0;  ///< longest sequence, in tokens
  Index layers = 4, heads = 4, features = 128;
  bool bias = false;  ///< in linear layers and norms
  double dropout = 0;
};

/// Predicts the next token after each token of a sequence. The output layer is the table of token vectors.
template <class T>
class Gpt {
 public:
  /// Draws initial values as GPT-2 does: normal with standard deviation 0.02, and smaller where a layer's output is
  /// added to its input.
  Gpt(const GptConfig& config, std::uint64_t seed);

  const GptConfig& config() const { return config_; }

  /// Returns the logits (batch, len, tokens) of the token after each token; `weights`, if given, receives the weights
  /// of each layer's heads.
  States<T> operator()(const Tokens& tokens, std::vector<Weights<T>>* weights = nullptr) const;

  /// Keys and values of the earlier tokens of sequences; next() returns the logits for the tokens that follow. See
  /// generation.cpp.
  Caches<T> make_caches(Index batch) const;
  States<T> next(const Tokens& tokens, Caches<T>& caches) const;

  States<T> forward(const Tokens& tokens);
  void backward(const States<T>& grad_logits);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    decoder_.visit_dropouts(f);
  }

 private:
  static LayerConfig layer_config(const GptConfig& config);
  States<T> with_positions(States<T> x, Index first) const;

  GptConfig config_;
  Random random_;  // draws the initial values
  Embedding<T> tokens_;
  LearnedPositions<T> positions_;
  TransformerEncoder<T> decoder_;  // GptBlocks; an encoder whose mask is causal
};

}  // namespace nn
