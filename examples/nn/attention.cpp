#include "attention.h"

#include "threads.h"

namespace nn {

namespace {

/// Calls f with the mask as a mod of attn.
template <class F>
auto with_mod(const Mask& mask, const F& f) {
  if (mask.causal && !mask.key_lengths.empty()) return f(attn::causal() | attn::key_lengths(mask.key_lengths));
  if (mask.causal) return f(attn::causal());
  if (!mask.key_lengths.empty()) return f(attn::key_lengths(mask.key_lengths));
  return f(attn::Mods<>());
}

attn::MultiHeadOptions with_threads(attn::MultiHeadOptions what = {}) {
  what.attention = options();
  return what;
}

template <class T, class Mod>
States<T> applied(const attn::MultiHeadAttention<T>& layer, const States<T>& x, const States<T>& memory, const Mod& mod,
                  Weights<T>* weights) {
  auto result = layer(x, memory, memory, mod, with_threads({.weights = weights != nullptr}));
  if (weights) *weights = std::move(result.weights);
  return std::move(result.out);
}

template <class T>
void visit_layer(attn::MultiHeadAttention<T>& layer, const std::string& prefix, const Visitor<T>& visitor) {
  layer.for_each_parameter([&](const std::string& name, std::span<T> values, std::span<T> gradient) {
    std::vector<Index> shape;
    if (name.ends_with("bias") || name.ends_with("norm.weight"))
      shape = {layer.bias(name).dim(0)};
    else
      shape = {layer.weight(name).dim(0), layer.weight(name).dim(1)};
    visitor({prefix + name, shape, values, gradient});
  });
}

}  // namespace

template <class T>
States<T> SelfAttention<T>::operator()(const States<T>& x, const Mask& mask, Weights<T>* weights) const {
  return with_mod(mask, [&](const auto& mod) { return applied(layer_, x, x, mod, weights); });
}

template <class T>
States<T> SelfAttention<T>::next(const States<T>& x, attn::KvLayer<T> cache) const {
  return layer_(x, cache, attn::causal(), with_threads()).out;
}

template <class T>
States<T> SelfAttention<T>::forward(States<T> x, const Mask& mask) {
  x_ = std::move(x);
  mask_ = mask;
  result_ = with_mod(mask, [&](const auto& mod) { return layer_(x_, x_, x_, mod, with_threads({.keep = true})); });
  return std::move(result_.out);
}

template <class T>
States<T> SelfAttention<T>::backward(const States<T>& grad) {
  auto g =
      with_mod(mask_, [&](const auto& mod) { return layer_.backward(grad, x_, x_, x_, result_, mod, with_threads()); });
  add_to(g.query, g.key);
  add_to(g.query, g.value);
  return std::move(g.query);
}

template <class T>
void SelfAttention<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  visit_layer(layer_, prefix, visitor);
}

template <class T>
States<T> CrossAttention<T>::operator()(const States<T>& x, const States<T>& memory, const Mask& mask,
                                        Weights<T>* weights) const {
  return with_mod(mask, [&](const auto& mod) { return applied(layer_, x, memory, mod, weights); });
}

template <class T>
States<T> CrossAttention<T>::next(const States<T>& x, const attn::KvView<T>& memory) const {
  const Index batch = memory.size();
  const auto queries = x.reshape(batch, x.dim(0) * x.dim(1) / batch, x.dim(2));
  const auto y = layer_.attend(queries, memory, with_threads()).out;
  return States<T>(y.reshape(x.dim(0), x.dim(1), x.dim(2)));
}

template <class T>
States<T> CrossAttention<T>::forward(States<T> x, const States<T>& memory, const Mask& mask) {
  x_ = std::move(x);
  memory_ = memory;
  mask_ = mask;
  result_ =
      with_mod(mask, [&](const auto& mod) { return layer_(x_, memory_, memory_, mod, with_threads({.keep = true})); });
  return std::move(result_.out);
}

template <class T>
States<T> CrossAttention<T>::backward(const States<T>& grad, States<T>& grad_memory) {
  return with_mod(mask_, [&](const auto& mod) {
    auto g = layer_.backward(grad, x_, memory_, memory_, result_, mod, with_threads());
    add_to(grad_memory, g.key_and_value());
    return std::move(g.query);
  });
}

template <class T>
void CrossAttention<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  visit_layer(layer_, prefix, visitor);
}

template class SelfAttention<NN_SCALAR>;
template class CrossAttention<NN_SCALAR>;

}  // namespace nn
