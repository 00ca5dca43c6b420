#include "gpt.h"

#include <cmath>

namespace nn {

namespace {

constexpr double kDeviation = 0.02;

}  // namespace

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
      tokens_(c.tokens, c.features, kDeviation, random_),
      positions_(c.context, c.features, kDeviation, random_),
      decoder_(c.layers, layer_config(c), random_) {
  // Two parts of each layer add to the states, whose variance would grow with the layers otherwise.
  const double added = kDeviation / std::sqrt(2 * static_cast<double>(c.layers));
  decoder_.visit("", [&](const Parameter<T>& p) {
    if (p.name.find("norm") != std::string::npos) return;
    const bool adds = p.name.ends_with("out_proj.weight") || p.name.ends_with("linear2.weight");
    const double deviation = p.shape.size() == 1 ? 0 : adds ? added : kDeviation;
    for (T& x : p.values) x = static_cast<T>(deviation * random_.normal());
  });
}

template <class T>
States<T> Gpt<T>::placed(States<T> x, Index first) const {
  positions_.add_to(x, first);
  return x;
}

template <class T>
States<T> Gpt<T>::operator()(const Tokens& tokens, std::vector<Weights<T>>* weights) const {
  return tokens_.project(decoder_(placed(tokens_(tokens), 0), {.causal = true}, weights));
}

template <class T>
typename Gpt<T>::Caches Gpt<T>::make_caches(Index batch) const {
  return decoder_.make_caches(batch, config_.context);
}

template <class T>
States<T> Gpt<T>::next(const Tokens& tokens, Caches& caches) const {
  return tokens_.project(decoder_.next(placed(tokens_(tokens), caches.front().length(0)), caches));
}

template <class T>
States<T> Gpt<T>::forward(const Tokens& tokens) {
  return tokens_.forward_project(decoder_.forward(placed(tokens_.forward(tokens), 0), {.causal = true}));
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
