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
std::vector<Cache<T>> caches_of(const std::vector<Layer>& layers, Index batch, Index capacity) {
  std::vector<Cache<T>> caches;
  for (const Layer& layer : layers) caches.push_back(layer.make_cache(batch, capacity));
  return caches;
}

template <class T, class Layer>
void visit_all(std::vector<Layer>& layers, Norm<T>& norm, const std::string& prefix, const Visitor<T>& visitor) {
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i].visit(prefix + "layers." + std::to_string(i) + ".", visitor);
  norm.visit(prefix + "norm.", visitor);
}

}  // namespace

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
typename TransformerEncoder<T>::Caches TransformerEncoder<T>::make_caches(Index batch, Index capacity) const {
  return caches_of<T>(layers_, batch, capacity);
}

template <class T>
States<T> TransformerEncoder<T>::next(States<T> x, Caches& caches) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i].next(x, caches[i]);
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
typename TransformerDecoder<T>::Caches TransformerDecoder<T>::make_caches(Index batch, Index capacity) const {
  return caches_of<T>(layers_, batch, capacity);
}

template <class T>
typename TransformerDecoder<T>::Caches TransformerDecoder<T>::remember(const States<T>& memory) const {
  Caches memories;
  for (const DecoderLayer<T>& layer : layers_) memories.push_back(layer.remember(memory));
  return memories;
}

template <class T>
States<T> TransformerDecoder<T>::next(States<T> x, Caches& caches, const Caches& memories,
                                      const Mask& memory_mask) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i].next(x, caches[i], memories[i], memory_mask);
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

template class TransformerEncoder<NN_SCALAR>;
template class TransformerDecoder<NN_SCALAR>;

}  // namespace nn
