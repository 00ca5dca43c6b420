// Attention as layers of a model: attn's MultiHeadAttention, with the inputs and results that backward() needs.
#pragma once

#include <optional>

#include "parameter.h"

namespace nn {

/// The keys that a query may attend to.
struct Mask {
  bool causal = false;
  /// Length of each sequence; later tokens are padding. Empty if there is no padding.
  std::vector<Index> key_lengths = {};
};

/// Attention weights, (batch, heads, len, keys).
template <class T>
using Weights = attn::Tensor<T, 4>;

/// Attention with queries, keys and values from the same sequence.
template <class T>
class SelfAttention {
 public:
  explicit SelfAttention(const attn::MultiHeadConfig& config) : layer_(config) {}

  /// Applies the layer; `weights`, if given, receives the weights of every head.
  States<T> operator()(const States<T>& x, const Mask& mask, Weights<T>* weights = nullptr) const;
  /// Appends the next tokens of each sequence to the cache, then applies the layer to them. They attend to all tokens
  /// in the cache up to themselves.
  States<T> next(const States<T>& x, attn::KvLayer<T> cache) const;

  States<T> forward(States<T> x, const Mask& mask);
  States<T> backward(const States<T>& grad);

  /// Visits the parameters under PyTorch's names: "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias".
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  attn::MultiHeadAttention<T> layer_;
  Mask mask_;
  States<T> x_;
  attn::MultiHeadResult<States<T>, T> result_;
};

/// Attention with queries from one sequence, and keys and values from another, the memory.
template <class T>
class CrossAttention {
 public:
  explicit CrossAttention(const attn::MultiHeadConfig& config) : layer_(config) {}

  States<T> operator()(const States<T>& x, const States<T>& memory, const Mask& mask,
                       Weights<T>* weights = nullptr) const;
  /// Computes the memory's keys and values once for a whole generation, in which every token attends to them. Several
  /// consecutive sequences of x may share one sequence of the memory, the same number for each.
  void remember(const States<T>& memory, attn::KvLayer<T> cache) const { layer_.append(memory, cache, options()); }
  States<T> next(const States<T>& x, const attn::KvView<T>& memory) const;

  States<T> forward(States<T> x, const States<T>& memory, const Mask& mask);
  /// Adds the gradient of the memory to grad_memory.
  States<T> backward(const States<T>& grad, States<T>& grad_memory);

  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  attn::MultiHeadAttention<T> layer_;
  Mask mask_;
  States<T> x_, memory_;
  attn::MultiHeadResult<States<T>, T> result_;
};

}  // namespace nn
