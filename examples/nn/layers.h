// The layers from which Transformers (Vaswani et al. 2017) are built.
#pragma once

#include "activation.h"
#include "attention.h"
#include "dropout.h"
#include "linear.h"
#include "norm.h"

namespace nn {

/// Configuration that the layers of a model share.
struct LayerConfig {
  Index features = 0;  ///< per token, between layers: PyTorch's d_model
  Index heads = 1;     ///< PyTorch's nhead
  Index hidden = 0;    ///< features inside the feed-forward network, PyTorch's dim_feedforward; 0: 4 * features
  ActivationKind activation = ActivationKind::relu;
  /// Pre-norm, x + f(norm(x)), which trains without a long warm-up (Xiong et al. 2020). Otherwise post-norm,
  /// norm(x + f(x)), PyTorch's default.
  bool norm_first = true;
  NormKind norm = NormKind::layer;
  bool bias = true;    ///< in linear layers
  double dropout = 0;  ///< applied to the branch of each residual connection
};

/// Linear layers width -> hidden -> width with an activation in between (Vaswani et al. 2017, section 3.3). PyTorch
/// names them linear1 and linear2.
template <class T>
class FeedForward {
 public:
  FeedForward(const LayerConfig& config, Random& random);

  States<T> operator()(const States<T>& x) const;
  States<T> forward(States<T> x);
  States<T> backward(const States<T>& grad);
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  Linear<T> linear1_, linear2_;
  Activation<T> activation_;
};

/// The residual connection around each part of a layer (He et al. 2016), with its norm and dropout. `F` and `B` are the
/// part's forward and backward functions: States<T>(States<T>).
template <class T>
class Residual {
 public:
  Residual(const LayerConfig& config, Random& random)
      : norm_first_(config.norm_first), norm_(config.features, config.norm), dropout_(config.dropout, random.bits()) {}

  template <class F>
  States<T> operator()(const States<T>& x, const F& part) const {
    if (norm_first_) return sum(part(norm_(x)), x);
    return norm_(sum(part(x), x));
  }

  template <class F>
  States<T> forward(States<T> x, const F& part) {
    States<T> y = part(norm_first_ ? norm_.forward(x) : x);
    dropout_.forward(y);
    add_to(y, x);
    return norm_first_ ? std::move(y) : norm_.forward(y);
  }

  template <class B>
  States<T> backward(States<T> grad, const B& part) {
    if (!norm_first_) grad = norm_.backward(grad);
    States<T> inside = grad;
    dropout_.backward(inside);
    inside = part(inside);
    if (norm_first_) inside = norm_.backward(inside);
    return sum(std::move(inside), grad);
  }

  Dropout<T>& dropout() { return dropout_; }
  void visit_norm(const std::string& prefix, const Visitor<T>& visitor) { norm_.visit(prefix, visitor); }

 private:
  static States<T> sum(States<T> y, const States<T>& x) {
    add_to(y, x);
    return y;
  }

  bool norm_first_;
  Norm<T> norm_;
  Dropout<T> dropout_;
};

/// nn.TransformerEncoderLayer: self-attention, then feed-forward.
template <class T>
class EncoderLayer {
 public:
  EncoderLayer(const LayerConfig& config, Random& random);

  States<T> operator()(const States<T>& x, const Mask& mask, Weights<T>* weights = nullptr) const;
  /// Applies the layer to the next tokens of sequences whose earlier tokens are in the cache.
  States<T> next(const States<T>& x, attn::KvLayer<T> cache) const;

  States<T> forward(States<T> x, const Mask& mask);
  States<T> backward(States<T> grad);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  /// Calls f for each dropout layer, so that a checkpoint can restore their call counts.
  template <class F>
  void visit_dropouts(const F& f) {
    f(residual1_.dropout()), f(residual2_.dropout());
  }

 private:
  SelfAttention<T> self_attn_;
  FeedForward<T> feed_forward_;
  Residual<T> residual1_, residual2_;
};

/// The block of a GPT (Radford et al. 2019): an EncoderLayer that is pre-norm and used with a causal mask.
template <class T>
using GptBlock = EncoderLayer<T>;

/// nn.TransformerDecoderLayer: self-attention, attention to a memory, feed-forward.
template <class T>
class DecoderLayer {
 public:
  DecoderLayer(const LayerConfig& config, Random& random);

  /// Applies the layer; `weights`, if given, receives the weights of the attention to the memory.
  States<T> operator()(const States<T>& x, const Mask& mask, const States<T>& memory, const Mask& memory_mask,
                       Weights<T>* weights = nullptr) const;
  void remember(const States<T>& memory, attn::KvLayer<T> cache) const { multihead_attn_.remember(memory, cache); }
  States<T> next(const States<T>& x, attn::KvLayer<T> cache, const attn::KvView<T>& memory) const;

  States<T> forward(States<T> x, const Mask& mask, const States<T>& memory, const Mask& memory_mask);
  /// Adds the gradient of the memory to grad_memory.
  States<T> backward(States<T> grad, States<T>& grad_memory);

  void visit(const std::string& prefix, const Visitor<T>& visitor);
  template <class F>
  void visit_dropouts(const F& f) {
    f(residual1_.dropout()), f(residual2_.dropout()), f(residual3_.dropout());
  }

 private:
  SelfAttention<T> self_attn_;
  CrossAttention<T> multihead_attn_;
  FeedForward<T> feed_forward_;
  Residual<T> residual1_, residual2_, residual3_;
};

}  // namespace nn
