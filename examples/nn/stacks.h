// Stacks of layers, with a norm at the end.
#pragma once

#include "layers.h"

namespace nn {

/// nn.TransformerEncoder. With a causal mask it is the body of a GPT.
template <class T>
class TransformerEncoder {
 public:
  TransformerEncoder(Index layers, const LayerConfig& config, Random& random);

  /// Applies the layers; `weights`, if given, receives the weights of each layer's heads.
  States<T> operator()(States<T> x, const Mask& mask, std::vector<Weights<T>>* weights = nullptr) const;

  /// Caches of the earlier tokens of sequences, one per layer.
  using Caches = std::vector<Cache<T>>;
  Caches make_caches(Index batch, Index capacity) const;
  States<T> next(States<T> x, Caches& caches) const;

  States<T> forward(States<T> x, const Mask& mask);
  States<T> backward(const States<T>& grad);

  /// Visits "layers.0. …" and "norm. …".
  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    for (EncoderLayer<T>& layer : layers_) layer.visit_dropouts(f);
  }

 private:
  std::vector<EncoderLayer<T>> layers_;
  Norm<T> norm_;
};

/// nn.TransformerDecoder.
template <class T>
class TransformerDecoder {
 public:
  TransformerDecoder(Index layers, const LayerConfig& config, Random& random);

  /// Applies the layers; `weights`, if given, receives the weights of each layer's attention to the memory.
  States<T> operator()(States<T> x, const Mask& mask, const States<T>& memory, const Mask& memory_mask,
                       std::vector<Weights<T>>* weights = nullptr) const;

  /// Keys and values, one cache per layer. For next(), `caches` hold those of earlier tokens, and `memories` those of
  /// the memory.
  using Caches = std::vector<Cache<T>>;
  Caches make_caches(Index batch, Index capacity) const;
  Caches remember(const States<T>& memory) const;
  States<T> next(States<T> x, Caches& caches, const Caches& memories, const Mask& memory_mask) const;

  States<T> forward(States<T> x, const Mask& mask, const States<T>& memory, const Mask& memory_mask);
  /// Adds the gradient of the memory to grad_memory.
  States<T> backward(const States<T>& grad, States<T>& grad_memory);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    for (DecoderLayer<T>& layer : layers_) layer.visit_dropouts(f);
  }

 private:
  std::vector<DecoderLayer<T>> layers_;
  Norm<T> norm_;
};

}  // namespace nn
