#include "encoder.h"

namespace nn {

template <class T>
Encoder<T>::Encoder(const EncoderConfig& c, std::uint64_t seed)
    : random_(seed),
      tokens_(c.tokens, c.layer.features, 0.02, random_),
      positions_(c.context, c.layer.features, 0.02, random_),
      encoder_(c.layers, c.layer, random_) {}

template <class T>
States<T> Encoder<T>::operator()(const Tokens& tokens, const std::vector<Index>& lengths) const {
  States<T> x = tokens_(tokens);
  positions_.add_to(x);
  return tokens_.project(encoder_(std::move(x), {.key_lengths = lengths}));
}

template <class T>
States<T> Encoder<T>::forward(const Tokens& tokens, const std::vector<Index>& lengths) {
  States<T> x = tokens_.forward(tokens);
  positions_.add_to(x);
  return tokens_.forward_project(encoder_.forward(std::move(x), {.key_lengths = lengths}));
}

template <class T>
void Encoder<T>::backward(const States<T>& grad_logits) {
  const States<T> grad = encoder_.backward(tokens_.backward_project(grad_logits));
  positions_.backward(grad);
  tokens_.backward(grad);
}

template <class T>
void Encoder<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  tokens_.visit(prefix + "tokens.", visitor);
  positions_.visit(prefix + "positions.", visitor);
  encoder_.visit(prefix, visitor);
}

template class Encoder<NN_SCALAR>;

}  // namespace nn
