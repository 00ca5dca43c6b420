#include "gpt.h"

#include "initial.h"

namespace nn {

template <class T>
LayerConfig Gpt<T>::layer_config(const GptConfig& c) {
  return {.features = c.features,
          .heads = c.heads,
          .activation = ActivationKind::gelu,
          .norm = c.bias ? NormKind::layer : NormKind::layer_without_bias,
          .bias = c.bias,
          .dropout = c.dropout};
}

template <class T>
Gpt<T>::Gpt(const GptConfig& c, std::uint64_t seed)
    : config_(c),
      random_(seed),
      tokens_(c.tokens, c.features, kGptDeviation, random_),
      positions_(c.context, c.features, kGptDeviation, random_),
      decoder_(c.layers, layer_config(c), random_) {
  draw_as_gpt2<T>(decoder_, c.layers, random_);
}

template <class T>
States<T> Gpt<T>::with_positions(States<T> x, Index first) const {
  positions_.add_to(x, first);
  return x;
}

template <class T>
States<T> Gpt<T>::operator()(const Tokens& tokens, std::vector<Weights<T>>* weights) const {
  return tokens_.project(decoder_(with_positions(tokens_(tokens), 0), {.causal = true}, weights));
}

template <class T>
States<T> Gpt<T>::forward(const Tokens& tokens) {
  return tokens_.forward_project(decoder_.forward(with_positions(tokens_.forward(tokens), 0), {.causal = true}));
}

template <class T>
void Gpt<T>::backward(const States<T>& grad_logits) {
  const States<T> grad = decoder_.backward(tokens_.backward_project(grad_logits));
  positions_.backward(grad);
  tokens_.backward(grad);
}

template <class T>
void Gpt<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  tokens_.visit(prefix + "tokens.", visitor);
  positions_.visit(prefix + "positions.", visitor);
  decoder_.visit(prefix, visitor);
}

template class Gpt<NN_SCALAR>;

}  // namespace nn
