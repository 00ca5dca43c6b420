#include "layers.h"

namespace nn {

namespace {

Index hidden_of(const LayerConfig& c) { return c.hidden > 0 ? c.hidden : 4 * c.features; }

attn::MultiHeadConfig attention_of(const LayerConfig& c, Random& random) {
  return {.embed_dim = c.features, .heads = c.heads, .bias = c.bias, .seed = random.bits()};
}

}  // namespace

template <class T>
FeedForward<T>::FeedForward(const LayerConfig& c, Random& random)
    : linear1_(c.features, inputs_of(c.activation, hidden_of(c)), c.bias, random),
      linear2_(hidden_of(c), c.features, c.bias, random),
      activation_(c.activation) {}

template <class T>
States<T> FeedForward<T>::operator()(const States<T>& x) const {
  return linear2_(activation_(linear1_(x)));
}

template <class T>
States<T> FeedForward<T>::forward(States<T> x) {
  return linear2_.forward(activation_.forward(linear1_.forward(std::move(x))));
}

template <class T>
States<T> FeedForward<T>::backward(const States<T>& grad) {
  return linear1_.backward(activation_.backward(linear2_.backward(grad)));
}

template <class T>
void FeedForward<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  linear1_.visit(prefix + "linear1.", visitor);
  linear2_.visit(prefix + "linear2.", visitor);
}

template <class T>
EncoderLayer<T>::EncoderLayer(const LayerConfig& c, Random& random)
    : self_attn_(attention_of(c, random)), feed_forward_(c, random), residual1_(c, random), residual2_(c, random) {}

template <class T>
States<T> EncoderLayer<T>::operator()(const States<T>& x, const Mask& mask, Weights<T>* weights) const {
  return residual2_(residual1_(x, [&](const States<T>& h) { return self_attn_(h, mask, weights); }), feed_forward_);
}

template <class T>
States<T> EncoderLayer<T>::next(const States<T>& x, attn::KvLayer<T> cache) const {
  return residual2_(residual1_(x, [&](const States<T>& h) { return self_attn_.next(h, cache); }), feed_forward_);
}

template <class T>
States<T> EncoderLayer<T>::forward(States<T> x, const Mask& mask) {
  x = residual1_.forward(std::move(x), [&](States<T> h) { return self_attn_.forward(std::move(h), mask); });
  return residual2_.forward(std::move(x), [&](States<T> h) { return feed_forward_.forward(std::move(h)); });
}

template <class T>
States<T> EncoderLayer<T>::backward(States<T> grad) {
  grad = residual2_.backward(std::move(grad), [&](const States<T>& g) { return feed_forward_.backward(g); });
  return residual1_.backward(std::move(grad), [&](const States<T>& g) { return self_attn_.backward(g); });
}

template <class T>
void EncoderLayer<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  self_attn_.visit(prefix + "self_attn.", visitor);
  feed_forward_.visit(prefix, visitor);
  residual1_.visit_norm(prefix + "norm1.", visitor);
  residual2_.visit_norm(prefix + "norm2.", visitor);
}

template <class T>
DecoderLayer<T>::DecoderLayer(const LayerConfig& c, Random& random)
    : self_attn_(attention_of(c, random)),
      multihead_attn_(attention_of(c, random)),
      feed_forward_(c, random),
      residual1_(c, random),
      residual2_(c, random),
      residual3_(c, random) {}

template <class T>
States<T> DecoderLayer<T>::operator()(const States<T>& x, const Mask& mask, const States<T>& memory,
                                      const Mask& memory_mask, Weights<T>* weights) const {
  States<T> y = residual1_(x, [&](const States<T>& h) { return self_attn_(h, mask); });
  y = residual2_(y, [&](const States<T>& h) { return multihead_attn_(h, memory, memory_mask, weights); });
  return residual3_(y, feed_forward_);
}

template <class T>
States<T> DecoderLayer<T>::next(const States<T>& x, attn::KvLayer<T> cache, const attn::KvView<T>& memory) const {
  States<T> y = residual1_(x, [&](const States<T>& h) { return self_attn_.next(h, cache); });
  y = residual2_(y, [&](const States<T>& h) { return multihead_attn_.next(h, memory); });
  return residual3_(y, feed_forward_);
}

template <class T>
States<T> DecoderLayer<T>::forward(States<T> x, const Mask& mask, const States<T>& memory, const Mask& memory_mask) {
  x = residual1_.forward(std::move(x), [&](States<T> h) { return self_attn_.forward(std::move(h), mask); });
  x = residual2_.forward(std::move(x),
                         [&](States<T> h) { return multihead_attn_.forward(std::move(h), memory, memory_mask); });
  return residual3_.forward(std::move(x), [&](States<T> h) { return feed_forward_.forward(std::move(h)); });
}

template <class T>
States<T> DecoderLayer<T>::backward(States<T> grad, States<T>& grad_memory) {
  grad = residual3_.backward(std::move(grad), [&](const States<T>& g) { return feed_forward_.backward(g); });
  grad = residual2_.backward(std::move(grad),
                             [&](const States<T>& g) { return multihead_attn_.backward(g, grad_memory); });
  return residual1_.backward(std::move(grad), [&](const States<T>& g) { return self_attn_.backward(g); });
}

template <class T>
void DecoderLayer<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  self_attn_.visit(prefix + "self_attn.", visitor);
  multihead_attn_.visit(prefix + "multihead_attn.", visitor);
  feed_forward_.visit(prefix, visitor);
  residual1_.visit_norm(prefix + "norm1.", visitor);
  residual2_.visit_norm(prefix + "norm2.", visitor);
  residual3_.visit_norm(prefix + "norm3.", visitor);
}

template class FeedForward<NN_SCALAR>;
template class EncoderLayer<NN_SCALAR>;
template class DecoderLayer<NN_SCALAR>;

}  // namespace nn
