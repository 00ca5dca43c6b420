// Attention as layers of a model: attn's MultiHeadAttention, with what backward() needs kept.
#pragma once

#include <optional>

#include "parameter.h"

namespace nn {

/// Which keys a query may look at.
struct Mask {
  bool causal = false;
  /// The length of each sequence; the tokens behind it are padding. Empty: there is no padding.
  std::vector<Index> key_lengths = {};
};

/// What attention keeps of the tokens so far while a text is generated.
template <class T>
using Cache = attn::KvCache<T>;

/// How much each query looks at each key: (batch, heads, len, keys).
template <class T>
using Weights = attn::Tensor<T, 4>;

/// Queries, keys and values from the same sequence.
template <class T>
class SelfAttention {
 public:
  explicit SelfAttention(const attn::MultiHeadConfig& config) : layer_(config) {}

  /// Also writes the weights of every head, if `weights` is given.
  States<T> operator()(const States<T>& x, const Mask& mask, Weights<T>* weights = nullptr) const;
  /// Applies the layer to the next tokens of each sequence, which look at themselves and at what the cache has. Then
  /// the cache has them too.
  States<T> next(const States<T>& x, Cache<T>& cache) const;
  Cache<T> make_cache(Index batch, Index capacity) const;

  States<T> forward(States<T> x, const Mask& mask);
  States<T> backward(const States<T>& grad);

  /// PyTorch's names: "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias".
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
  /// The memory's keys and values, computed once for a whole generation, in which each token looks at them. Several
  /// sequences of x in a row may share one of the memory, equally many each.
  Cache<T> remember(const States<T>& memory) const;
  States<T> next(const States<T>& x, const Cache<T>& memory, const Mask& mask) const;

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
