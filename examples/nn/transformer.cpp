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

template <class T>
States<T> Transformer<T>::operator()(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets,
                                     std::vector<Weights<T>>* weights) const {
  const Mask padding{.key_lengths = lengths};
  const States<T> memory = encoder_(at_positions(source_tokens_(sources)), padding);
  const States<T> x = decoder_(at_positions(target_tokens_(targets)), {.causal = true}, memory, padding, weights);
  return target_tokens_.project(x);
}

template <class T>
States<T> Transformer<T>::forward(const Tokens& sources, const std::vector<Index>& lengths, const Tokens& targets) {
  const Mask padding{.key_lengths = lengths};
  States<T> x = at_positions(source_tokens_.forward(sources));
  source_dropout_.forward(x);
  memory_ = encoder_.forward(std::move(x), padding);
  x = at_positions(target_tokens_.forward(targets));
  target_dropout_.forward(x);
  return target_tokens_.forward_project(decoder_.forward(std::move(x), {.causal = true}, memory_, padding));
}

template <class T>
void Transformer<T>::backward(const States<T>& grad_logits) {
  States<T> grad_memory(memory_.shape());
  States<T> grad = decoder_.backward(target_tokens_.backward_project(grad_logits), grad_memory);
  target_dropout_.backward(grad);
  target_tokens_.backward(scaled(std::move(grad)));
  grad = encoder_.backward(grad_memory);
  source_dropout_.backward(grad);
  source_tokens_.backward(scaled(std::move(grad)));
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
