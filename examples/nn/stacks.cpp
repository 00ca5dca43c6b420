#include "stacks.h"

namespace nn {

namespace {

template <class Layer>
std::vector<Layer> make_layers(Index count, const LayerConfig& config, Random& random) {
  std::vector<Layer> layers;
  for (Index i = 0; i < count; ++i) layers.emplace_back(config, random);
  return layers;
}

template <class T, class Layer>
void visit_all(std::vector<Layer>& layers, Norm<T>& norm, const std::string& prefix, const Visitor<T>& visitor) {
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i].visit(prefix + "layers." + std::to_string(i) + ".", visitor);
  norm.visit(prefix + "norm.", visitor);
}

}  // namespace

template <class T>
Caches<T>::Caches(const LayerConfig& c, Index layers, Index batch, Index capacity)
    : kv({.layers = layers,
          .kv_heads = c.heads,
          .head_dim = c.features / c.heads,
          .pages = batch,
          .page_size = capacity}) {
  for (Index i = 0; i < batch; ++i) sequences.push_back(kv.add());
}

template <class T>
TransformerEncoder<T>::TransformerEncoder(Index layers, const LayerConfig& config, Random& random)
    : layers_(make_layers<EncoderLayer<T>>(layers, config, random)), norm_(config.features, config.norm) {}

template <class T>
States<T> TransformerEncoder<T>::operator()(States<T> x, const Mask& mask, std::vector<Weights<T>>* weights) const {
  if (weights) weights->resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i](x, mask, weights ? &(*weights)[i] : nullptr);
  return norm_(x);
}

template <class T>
States<T> TransformerEncoder<T>::next(States<T> x, Caches<T>& caches) const {
  auto step = caches.kv.step(caches.sequences, x.dim(1));
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i].next(x, step.layer(static_cast<Index>(i)));
  step.commit();
  return norm_(x);
}

template <class T>
States<T> TransformerEncoder<T>::forward(States<T> x, const Mask& mask) {
  for (EncoderLayer<T>& layer : layers_) x = layer.forward(std::move(x), mask);
  return norm_.forward(x);
}

template <class T>
States<T> TransformerEncoder<T>::backward(const States<T>& grad) {
  States<T> g = norm_.backward(grad);
  for (std::size_t i = layers_.size(); i-- > 0;) g = layers_[i].backward(std::move(g));
  return g;
}

template <class T>
void TransformerEncoder<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  visit_all(layers_, norm_, prefix, visitor);
}

template <class T>
TransformerDecoder<T>::TransformerDecoder(Index layers, const LayerConfig& config, Random& random)
    : layers_(make_layers<DecoderLayer<T>>(layers, config, random)), norm_(config.features, config.norm) {}

template <class T>
States<T> TransformerDecoder<T>::operator()(States<T> x, const Mask& mask, const States<T>& memory,
                                            const Mask& memory_mask, std::vector<Weights<T>>* weights) const {
  if (weights) weights->resize(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i)
    x = layers_[i](x, mask, memory, memory_mask, weights ? &(*weights)[i] : nullptr);
  return norm_(x);
}

template <class T>
void TransformerDecoder<T>::remember(const States<T>& memory, const std::vector<Index>& lengths,
                                     Caches<T>& memories) const {
  auto step = memories.kv.step(memories.sequences, memory.dim(1));
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].remember(memory, step.layer(static_cast<Index>(i)));
  step.commit();
  for (std::size_t i = 0; i < lengths.size(); ++i) memories.kv.truncate(memories.sequences[i], lengths[i]);
}

template <class T>
States<T> TransformerDecoder<T>::next(States<T> x, Caches<T>& caches, const Caches<T>& memories) const {
  auto step = caches.kv.step(caches.sequences, x.dim(1));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto layer = static_cast<Index>(i);
    x = layers_[i].next(x, step.layer(layer), memories.kv.view(layer, memories.sequences));
  }
  step.commit();
  return norm_(x);
}

template <class T>
States<T> TransformerDecoder<T>::forward(States<T> x, const Mask& mask, const States<T>& memory,
                                         const Mask& memory_mask) {
  for (DecoderLayer<T>& layer : layers_) x = layer.forward(std::move(x), mask, memory, memory_mask);
  return norm_.forward(x);
}

template <class T>
States<T> TransformerDecoder<T>::backward(const States<T>& grad, States<T>& grad_memory) {
  States<T> g = norm_.backward(grad);
  for (std::size_t i = layers_.size(); i-- > 0;) g = layers_[i].backward(std::move(g), grad_memory);
  return g;
}

template <class T>
void TransformerDecoder<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  visit_all(layers_, norm_, prefix, visitor);
}

template struct Caches<NN_SCALAR>;
template class TransformerEncoder<NN_SCALAR>;
template class TransformerDecoder<NN_SCALAR>;

}  // namespace nn
