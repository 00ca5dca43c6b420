#include "encoder.h"

namespace nn {

template <class T>
Encoder<T>::Encoder(const EncoderConfig& c, std::uint64_t seed)
    : random_(seed),
      tokens_(c.tokens, c.layer.features, 0.02, random_),
      positions_(c.context, c.layer.features, 0.02, random_),
      norm_(c.layer.features, c.layer.norm) {
  for (Index i = 0; i < c.layers; ++i) layers_.emplace_back(c.layer, random_);
}

template <class T>
States<T> Encoder<T>::operator()(const Tokens& tokens, const std::vector<Index>& lengths) const {
  States<T> x = tokens_(tokens);
  positions_.add_to(x);
  for (const EncoderLayer<T>& layer : layers_) x = layer(x, {.key_lengths = lengths});
  return tokens_.project(norm_(x));
}

template <class T>
States<T> Encoder<T>::forward(const Tokens& tokens, const std::vector<Index>& lengths) {
  States<T> x = tokens_.forward(tokens);
  positions_.add_to(x);
  for (EncoderLayer<T>& layer : layers_) x = layer.forward(std::move(x), {.key_lengths = lengths});
  return tokens_.forward_project(norm_.forward(x));
}

template <class T>
void Encoder<T>::backward(const States<T>& grad_logits) {
  States<T> grad = norm_.backward(tokens_.backward_project(grad_logits));
  for (std::size_t i = layers_.size(); i-- > 0;) grad = layers_[i].backward(std::move(grad));
  positions_.backward(grad);
  tokens_.backward(grad);
}

template <class T>
void Encoder<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  tokens_.visit(prefix + "tokens.", visitor);
  positions_.visit(prefix + "positions.", visitor);
  for (std::size_t i = 0; i < layers_.size(); ++i)
    layers_[i].visit(prefix + "layers." + std::to_string(i) + ".", visitor);
  norm_.visit(prefix + "norm.", visitor);
}

template class Encoder<NN_SCALAR>;

}  // namespace nn
