#include "transformer.h"

#include <cmath>

namespace nn {

template <class T>
Transformer<T>::Transformer(const TransformerConfig& c, std::uint64_t seed)
    : config_(c),
      random_(seed),
      source_tokens_(c.source_tokens, c.layer.features, 1 / std::sqrt(static_cast<double>(c.layer.features)), random_),
      target_tokens_(c.target_tokens, c.layer.features, 1 / std::sqrt(static_cast<double>(c.layer.features)), random_),
      source_dropout_(c.layer.dropout, random_.bits()),
      target_dropout_(c.layer.dropout, random_.bits()),
      encoder_(c.encoder_layers, c.layer, random_),
      decoder_(c.decoder_layers, c.layer, random_) {}

/// Vectors of tokens as large as the positions', which are added to them (Vaswani et al. 2017, section 3.4).
template <class T>
States<T> Transformer<T>::placed(States<T> x, Index first) const {
  rows_of(x) *= static_cast<T>(std::sqrt(static_cast<double>(config_.layer.features)));
  add_sinusoidal_positions(x, first);
  return x;
}

template <class T>
States<T> Transformer<T>::operator()(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets,
                                     std::vector<Weights<T>>* weights) const {
  const Mask padding{.key_lengths = lengths};
  const States<T> memory = encoder_(placed(source_tokens_(sources), 0), padding);
  return target_tokens_.project(
      decoder_(placed(target_tokens_(targets), 0), {.causal = true}, memory, padding, weights));
}

template <class T>
typename Transformer<T>::Caches Transformer<T>::encode(const Tokens& sources, const std::vector<Index>& lengths,
                                                       Index targets_each) const {
  const States<T> memory = encoder_(placed(source_tokens_(sources), 0), {.key_lengths = lengths});
  return {decoder_.remember(memory), decoder_.make_caches(sources.dim(0) * targets_each, sources.dim(1)), lengths};
}

template <class T>
States<T> Transformer<T>::next(const Tokens& targets, Caches& caches) const {
  States<T> x = placed(target_tokens_(targets), caches.targets.front().length(0));
  return target_tokens_.project(
      decoder_.next(std::move(x), caches.targets, caches.sources, {.key_lengths = caches.lengths}));
}

template <class T>
States<T> Transformer<T>::forward(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets) {
  const Mask padding{.key_lengths = lengths};
  States<T> x = placed(source_tokens_.forward(sources), 0);
  source_dropout_.forward(x);
  memory_ = encoder_.forward(std::move(x), padding);
  x = placed(target_tokens_.forward(targets), 0);
  target_dropout_.forward(x);
  return target_tokens_.forward_project(decoder_.forward(std::move(x), {.causal = true}, memory_, padding));
}

template <class T>
void Transformer<T>::backward(const States<T>& grad_logits) {
  States<T> grad_memory(memory_.shape());
  States<T> grad = decoder_.backward(target_tokens_.backward_project(grad_logits), grad_memory);
  const auto embedded = [&](States<T> g, Dropout<T>& dropout, Embedding<T>& tokens) {
    dropout.backward(g);
    rows_of(g) *= static_cast<T>(std::sqrt(static_cast<double>(config_.layer.features)));
    tokens.backward(g);
  };
  embedded(std::move(grad), target_dropout_, target_tokens_);
  embedded(encoder_.backward(grad_memory), source_dropout_, source_tokens_);
}

template <class T>
void Transformer<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  source_tokens_.visit(prefix + "source_tokens.", visitor);
  target_tokens_.visit(prefix + "target_tokens.", visitor);
  encoder_.visit(prefix + "encoder.", visitor);
  decoder_.visit(prefix + "decoder.", visitor);
}

template class Transformer<NN_SCALAR>;

}  // namespace nn
