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
      encoder_norm_(c.layer.features, c.layer.norm),
      decoder_norm_(c.layer.features, c.layer.norm) {
  for (Index i = 0; i < c.encoder_layers; ++i) encoder_.emplace_back(c.layer, random_);
  for (Index i = 0; i < c.decoder_layers; ++i) decoder_.emplace_back(c.layer, random_);
}

/// Vectors of tokens as large as the positions', which are added to them (Vaswani et al. 2017, section 3.4).
template <class T>
States<T> Transformer<T>::placed(States<T> x, Index first) const {
  rows_of(x) *= static_cast<T>(std::sqrt(static_cast<double>(config_.layer.features)));
  add_sinusoidal_positions(x, first);
  return x;
}

template <class T>
States<T> Transformer<T>::encoded(const Tokens& sources, const Mask& mask) const {
  States<T> x = placed(source_tokens_(sources), 0);
  for (const EncoderLayer<T>& layer : encoder_) x = layer(x, mask);
  return encoder_norm_(x);
}

template <class T>
States<T> Transformer<T>::operator()(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets,
                                     std::vector<Weights<T>>* weights) const {
  const Mask padding{.key_lengths = lengths};
  const States<T> memory = encoded(sources, padding);
  States<T> x = placed(target_tokens_(targets), 0);
  if (weights) weights->resize(decoder_.size());
  for (std::size_t i = 0; i < decoder_.size(); ++i)
    x = decoder_[i](x, {.causal = true}, memory, padding, weights ? &(*weights)[i] : nullptr);
  return target_tokens_.project(decoder_norm_(x));
}

template <class T>
typename Transformer<T>::Caches Transformer<T>::encode(const Tokens& sources, const std::vector<Index>& lengths) const {
  const States<T> memory = encoded(sources, {.key_lengths = lengths});
  Caches caches{.sources = {}, .targets = {}, .lengths = lengths};
  for (const DecoderLayer<T>& layer : decoder_) {
    caches.sources.push_back(layer.remember(memory));
    caches.targets.push_back(layer.make_cache(sources.dim(0), sources.dim(1)));
  }
  return caches;
}

template <class T>
States<T> Transformer<T>::next(const Tokens& targets, Caches& caches) const {
  States<T> x = placed(target_tokens_(targets), caches.targets.front().length(0));
  for (std::size_t i = 0; i < decoder_.size(); ++i)
    x = decoder_[i].next(x, caches.targets[i], caches.sources[i], {.key_lengths = caches.lengths});
  return target_tokens_.project(decoder_norm_(x));
}

template <class T>
States<T> Transformer<T>::forward(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets) {
  const Mask padding{.key_lengths = lengths};
  States<T> x = placed(source_tokens_.forward(sources), 0);
  source_dropout_.forward(x);
  for (EncoderLayer<T>& layer : encoder_) x = layer.forward(std::move(x), padding);
  memory_ = encoder_norm_.forward(x);
  x = placed(target_tokens_.forward(targets), 0);
  target_dropout_.forward(x);
  for (DecoderLayer<T>& layer : decoder_) x = layer.forward(std::move(x), {.causal = true}, memory_, padding);
  return target_tokens_.forward_project(decoder_norm_.forward(x));
}

template <class T>
void Transformer<T>::backward(const States<T>& grad_logits) {
  const T scale = static_cast<T>(std::sqrt(static_cast<double>(config_.layer.features)));
  States<T> grad_memory(memory_.shape());
  States<T> grad = decoder_norm_.backward(target_tokens_.backward_project(grad_logits));
  for (std::size_t i = decoder_.size(); i-- > 0;) grad = decoder_[i].backward(std::move(grad), grad_memory);
  target_dropout_.backward(grad);
  rows_of(grad) *= scale;
  target_tokens_.backward(grad);
  grad = encoder_norm_.backward(grad_memory);
  for (std::size_t i = encoder_.size(); i-- > 0;) grad = encoder_[i].backward(std::move(grad));
  source_dropout_.backward(grad);
  rows_of(grad) *= scale;
  source_tokens_.backward(grad);
}

template <class T>
void Transformer<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  source_tokens_.visit(prefix + "source_tokens.", visitor);
  target_tokens_.visit(prefix + "target_tokens.", visitor);
  const auto visit_all = [&](const std::string& name, auto& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i)
      layers[i].visit(prefix + name + ".layers." + std::to_string(i) + ".", visitor);
  };
  visit_all("encoder", encoder_);
  encoder_norm_.visit(prefix + "encoder.norm.", visitor);
  visit_all("decoder", decoder_);
  decoder_norm_.visit(prefix + "decoder.norm.", visitor);
}

template class Transformer<NN_SCALAR>;

}  // namespace nn
