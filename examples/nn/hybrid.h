// A hybrid language model in the shape of Qwen3-Next: three DeltaNets to each attention layer.
#pragma once

#include "embedding.h"
#include "hybrid_layers.h"

namespace nn {

/// Predicts the next token after each token of a sequence. Only attention layers know positions, by their rope; the
/// output layer is the table of token vectors.
template <class T>
class Hybrid {
 public:
  Hybrid(const HybridConfig& config, std::uint64_t seed);

  const HybridConfig& config() const { return config_; }

  /// Returns the logits (batch, len, tokens) of the token after each token.
  States<T> operator()(const Tokens& tokens) const;

  /// The earlier tokens of sequences, at first none, as the layers keep them; next() returns the logits for the tokens
  /// that follow. See generation.cpp.
  struct State {
    std::vector<typename HybridBlock<T>::Memories> memories;  ///< of each block
    attn::KvCaches<T> caches;                                 ///< with a layer for each block
    std::vector<Index> sequences;                             ///< of `caches`, in the order of the batch
  };
  /// `capacity` is the largest number of tokens of a sequence. Only the caches of the attention layers grow with it.
  State make_state(Index batch, Index capacity) const;
  States<T> next(const Tokens& tokens, State& state) const;

  States<T> forward(const Tokens& tokens);
  void backward(const States<T>& grad_logits);

  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  HybridConfig config_;
  Random random_;  // draws the initial values
  Embedding<T> tokens_;
  std::vector<HybridBlock<T>> blocks_;
  Norm<T> norm_;
};

}  // namespace nn
