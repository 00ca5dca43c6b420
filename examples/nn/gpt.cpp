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
      norm_(c.features, layer_config(c).norm) {
  for (Index i = 0; i < c.layers; ++i) layers_.emplace_back(layer_config(c), random_);
  // Two parts of each layer add to the states, whose variance would grow with the layers otherwise.
  const double added = kDeviation / std::sqrt(2 * static_cast<double>(c.layers));
  visit("", [&](const Parameter<T>& p) {
    if (!p.name.starts_with("layers.") || p.name.find("norm") != std::string::npos) return;
    const bool adds = p.name.ends_with("out_proj.weight") || p.name.ends_with("linear2.weight");
    const double deviation = p.shape.size() == 1 ? 0 : adds ? added : kDeviation;
    for (T& x : p.values) x = static_cast<T>(deviation * random_.normal());
  });
}

template <class T>
States<T> Gpt<T>::operator()(const Tokens& tokens, std::vector<Weights<T>>* weights) const {
  States<T> x = tokens_(tokens);
  positions_.add_to(x);
  if (weights) weights->resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i)
    x = layers_[i](x, {.causal = true}, weights ? &(*weights)[i] : nullptr);
  return tokens_.project(norm_(x));
}

template <class T>
typename Gpt<T>::Caches Gpt<T>::make_caches(Index batch) const {
  Caches caches;
  for (const EncoderLayer<T>& layer : layers_) caches.push_back(layer.make_cache(batch, config_.context));
  return caches;
}

template <class T>
States<T> Gpt<T>::next(const Tokens& tokens, Caches& caches) const {
  States<T> x = tokens_(tokens);
  positions_.add_to(x, caches.front().length(0));
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i].next(x, caches[i]);
  return tokens_.project(norm_(x));
}

template <class T>
States<T> Gpt<T>::forward(const Tokens& tokens) {
  States<T> x = tokens_.forward(tokens);
  positions_.add_to(x);
  for (EncoderLayer<T>& layer : layers_) x = layer.forward(std::move(x), {.causal = true});
  return tokens_.forward_project(norm_.forward(x));
}

template <class T>
void Gpt<T>::backward(const States<T>& grad_logits) {
  States<T> grad = norm_.backward(tokens_.backward_project(grad_logits));
  for (std::size_t i = layers_.size(); i-- > 0;) grad = layers_[i].backward(std::move(grad));
  positions_.backward(grad);
  tokens_.backward(grad);
}

template <class T>
void Gpt<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  tokens_.visit(prefix + "tokens.", visitor);
  positions_.visit(prefix + "positions.", visitor);
  for (std::size_t i = 0; i < layers_.size(); ++i)
    layers_[i].visit(prefix + "layers." + std::to_string(i) + ".", visitor);
  norm_.visit(prefix + "norm.", visitor);
}

template class Gpt<NN_SCALAR>;

}  // namespace nn
