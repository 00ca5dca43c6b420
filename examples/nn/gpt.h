// A decoder-only model: GPT (Radford et al. 2019). Its blocks are GptBlock.
#pragma once

#include "embedding.h"
#include "stacks.h"

namespace nn {

struct GptConfig {
  Index tokens = 0;   ///< different ones
  Index context = 0;  ///< the longest text, in tokens
  Index layers = 4, heads = 4, features = 128;
  bool bias = false;  ///< of linear layers and norms
  double dropout = 0;
};

/// Predicts each next token of texts. The output layer is the table of the tokens' vectors.
template <class T>
class Gpt {
 public:
  /// Draws initial numbers as GPT-2's: normal, of deviation 0.02, and smaller where layers add to what they were given.
  Gpt(const GptConfig& config, std::uint64_t seed);

  const GptConfig& config() const { return config_; }

  /// The logits (batch, len, tokens) of what follows each token, and the weights of each layer's heads if asked for.
  States<T> operator()(const Tokens& tokens, std::vector<Weights<T>>* weights = nullptr) const;

  /// As above, for the next tokens of texts that were begun before. `caches` keeps what is needed of them; see
  /// generation.cpp.
  using Caches = typename TransformerEncoder<T>::Caches;
  Caches make_caches(Index batch) const;
  States<T> next(const Tokens& tokens, Caches& caches) const;

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
  Random random_;  // of the initial numbers
  Embedding<T> tokens_;
  LearnedPositions<T> positions_;
  TransformerEncoder<T> decoder_;  // of GptBlocks: a decoder, since its mask is causal
};

}  // namespace nn
