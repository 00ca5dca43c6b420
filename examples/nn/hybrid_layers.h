// The layers of a hybrid model: tokens are mixed by a DeltaNet or by gated attention.
#pragma once

#include <vector>

#include "delta_net.h"
#include "gated_attention.h"
#include "layers.h"

namespace nn {

struct HybridConfig {
  Index tokens = 0;      ///< vocabulary size
  Index blocks = 2;      ///< of three DeltaNets and one attention layer
  Index features = 128;  ///< per token, between layers
  Index heads = 4;       ///< of a DeltaNet, and of the queries of an attention layer
  Index kv_heads = 2;    ///< of an attention layer; a divisor of `heads`
  Index head_dim = 32;   ///< of all heads; even, because the rope rotates pairs
  Index conv_width = 4;  ///< tokens that the convolution of a DeltaNet sees
  double rope_base = 1e4;
  double norm_epsilon = 1e-6;  ///< of the norms inside the mixers of tokens

  DeltaNetConfig delta_net() const {
    return {.features = features,
            .heads = heads,
            .head_dim = head_dim,
            .conv_width = conv_width,
            .norm_epsilon = norm_epsilon};
  }
  attn::MultiHeadConfig attention(std::uint64_t seed = 0) const {
    // Copied from a constant, because gcc 12 warns of the uninitialised part of an empty optional in a local one.
    static constexpr attn::RopeConfig kDefaults;
    attn::RopeConfig rope = kDefaults;
    rope.head_dim = head_dim;
    rope.base = rope_base;
    return {.embed_dim = features,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .bias = false,
            .seed = seed,
            .rope = attn::Rope(rope),
            .qk_norm = true,
            .qk_norm_eps = norm_epsilon,
            .output_gate = true};
  }
  /// SwiGLU has three matrices instead of two, and therefore 8/3 instead of 4 times the features (Shazeer 2020).
  LayerConfig layer() const {
    return {.features = features,
            .hidden = 8 * features / 3,
            .activation = ActivationKind::swiglu,
            .norm = NormKind::rms,
            .bias = false};
  }
};

/// A mixer of tokens and then a feed-forward network, each with a residual connection.
template <class T, class Mixer>
class HybridLayer {
 public:
  HybridLayer(Mixer mixer, const LayerConfig& config, Random& random)
      : mixer_(std::move(mixer)),
        feed_forward_(config, random),
        residual1_(config, random),
        residual2_(config, random) {}

  /// Applies the layer to whole sequences, or to the next tokens of sequences whose earlier tokens are in the state.
  States<T> operator()(const States<T>& x, typename Mixer::State* state = nullptr) const {
    return residual2_(residual1_(x, [&](const States<T>& h) { return mixer_(h, state); }), feed_forward_);
  }

  States<T> forward(States<T> x) {
    x = residual1_.forward(std::move(x), [&](States<T> h) { return mixer_.forward(std::move(h)); });
    return residual2_.forward(std::move(x), [&](States<T> h) { return feed_forward_.forward(std::move(h)); });
  }

  States<T> backward(States<T> grad) {
    grad = residual2_.backward(std::move(grad), [&](const States<T>& g) { return feed_forward_.backward(g); });
    return residual1_.backward(std::move(grad), [&](const States<T>& g) { return mixer_.backward(g); });
  }

  void visit(const std::string& prefix, const Visitor<T>& visitor) {
    mixer_.visit(prefix + Mixer::kName, visitor);
    feed_forward_.visit(prefix, visitor);
    residual1_.visit_norm(prefix + "norm1.", visitor);
    residual2_.visit_norm(prefix + "norm2.", visitor);
  }

 private:
  Mixer mixer_;
  FeedForward<T> feed_forward_;
  Residual<T> residual1_, residual2_;
};

/// Three layers with a DeltaNet, then one with gated attention.
template <class T>
class HybridBlock {
 public:
  static constexpr std::size_t kDeltaNets = 3;
  using Memories = std::vector<DeltaNetState<T>>;  ///< kDeltaNets states

  HybridBlock(const HybridConfig& config, Random& random);

  /// Applies the block to whole sequences, or to the next tokens of sequences whose earlier tokens are in `memories`
  /// and the cache: both are given, or none.
  States<T> operator()(States<T> x, Memories* memories = nullptr, attn::KvLayer<T>* cache = nullptr) const;
  States<T> forward(States<T> x);
  States<T> backward(States<T> grad);

  /// Visits layers first … first + kDeltaNets, as "layers.0. …".
  void visit(std::size_t first, const std::string& prefix, const Visitor<T>& visitor);

 private:
  std::vector<HybridLayer<T, DeltaNet<T>>> delta_nets_;
  HybridLayer<T, GatedAttention<T>> attention_;
};

}  // namespace nn
