// Stacks of layers, with a norm at the end.
#pragma once

#include "layers.h"

namespace nn {

/// Keys and values of earlier tokens in all layers of a decoder, during text generation.
template <class T>
struct Caches {
  /// For `batch` sequences of up to `capacity` tokens, each contiguous in memory.
  Caches(const LayerConfig& config, Index layers, Index batch, Index capacity);

  /// The number of tokens of each sequence.
  Index length() const { return kv.length(sequences.front()); }

  attn::KvCaches<T> kv;
  std::vector<Index> sequences;  ///< of `kv`, in the order of the batch
};

/// nn.TransformerEncoder. With a causal mask it is the body of a GPT.
template <class T>
class TransformerEncoder {
 public:
  TransformerEncoder(Index layers, const LayerConfig& config, Random& random);

  /// Applies the layers; `weights`, if given, receives the weights of each layer's heads.
  States<T> operator()(States<T> x, const Mask& mask, std::vector<Weights<T>>* weights = nullptr) const;

  /// Applies the layers to the next tokens of sequences whose earlier tokens are in the caches.
  States<T> next(States<T> x, Caches<T>& caches) const;

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

  /// Appends the memory's keys and values to caches, once for a whole generation. Tokens after `lengths` are padding.
  void remember(const States<T>& memory, const std::vector<Index>& lengths, Caches<T>& memories) const;
  States<T> next(States<T> x, Caches<T>& caches, const Caches<T>& memories) const;

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
