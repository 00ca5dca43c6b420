// The configuration and the named parameters of multi-head latent attention.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/latent_config.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

inline const MultiHeadOptions& layer_options(const MultiHeadOptions& options) { return options; }
inline MultiHeadOptions layer_options(const Options& options) { return {.attention = options}; }

/// The configuration of a LatentAttention with its defaults filled in, and all its parameters.
template <class T>
class LatentParameters {
 public:
  /// @throws std::invalid_argument for invalid sizes.
  explicit LatentParameters(const LatentAttentionConfig& config) : config_(resolved(config)) {
    const LatentAttentionConfig& c = config_;
    if (c.q_rank > 0) {
      add("q_a_proj.weight", c.q_rank, c.embed_dim);
      named_.add_vector("q_a_layernorm.weight", c.q_rank, 1);
      add("q_b_proj.weight", c.heads * qk_dim(), c.q_rank);
    } else {
      add("q_proj.weight", c.heads * qk_dim(), c.embed_dim);
    }
    add("kv_a_proj_with_mqa.weight", row(), c.embed_dim);
    named_.add_vector("kv_a_layernorm.weight", c.latent.rank, 1);
    add("kv_b_proj.weight", c.heads * kv_dim(), c.latent.rank);
    add("o_proj.weight", c.embed_dim, c.heads * c.v_head_dim);
  }

  const LatentAttentionConfig& config() const { return config_; }
  Parameters<T>& named() { return named_; }
  const Parameters<T>& named() const { return named_; }

  Index row() const { return config_.latent.rank + config_.latent.rope_dim; }  ///< features of a latent row
  Index qk_dim() const { return config_.nope_dim + config_.latent.rope_dim; }  ///< of a head of query and key
  Index kv_dim() const { return config_.nope_dim + config_.v_head_dim; }       ///< of a head of kv_b_proj
  const char* q_name() const { return config_.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"; }

  /// A projection of tokens.
  Linear<T> linear(const char* name) const {
    const auto weight = named_.weight(name);
    return {weight.data(), nullptr, weight.dim(1), weight.dim(0)};
  }
  /// The part of a head in kv_b_proj: W_uk (nope_dim, rank), followed by W_uv (v_head_dim, rank).
  const T* kv_b(Index head) const {
    return named_.weight("kv_b_proj.weight").data() + head * kv_dim() * config_.latent.rank;
  }
  HeadNorm<T> norm(const char* name) const {
    const auto weight = named_.bias(name);
    return {weight, weight.dim(0), config_.norm_eps};
  }

  /// The sizes of the heads in the unfolded form.
  MultiHeadConfig unfolded() const {
    const LatentAttentionConfig& c = config_;
    return {.embed_dim = c.embed_dim,
            .heads = c.heads,
            .kv_heads = c.heads,
            .head_dim = qk_dim(),
            .v_head_dim = c.v_head_dim};
  }
  /// Returns options with the layer's scale, unless they have their own.
  MultiHeadOptions scaled(MultiHeadOptions options) const {
    if (!options.attention.scale)
      options.attention.scale = config_.scale_factor / std::sqrt(static_cast<double>(qk_dim()));
    return options;
  }

 private:
  static LatentAttentionConfig resolved(LatentAttentionConfig c) {
    if (c.v_head_dim == 0) c.v_head_dim = c.nope_dim;
    const Index least = std::min({c.embed_dim, c.heads, c.latent.rank, c.nope_dim, c.v_head_dim});
    require(least > 0 && c.q_rank >= 0 && c.latent.rope_dim >= 0, "LatentAttention: embed_dim ", c.embed_dim,
            ", heads ", c.heads, ", latent.rank ", c.latent.rank, ", nope_dim ", c.nope_dim, " and v_head_dim ",
            c.v_head_dim, " must be positive, and q_rank ", c.q_rank, " and latent.rope_dim ", c.latent.rope_dim,
            " at least 0");
    const Index most = kLargestIndex / c.heads / 2;
    require(std::max({c.embed_dim, c.q_rank, c.latent.rank, c.latent.rope_dim, c.nope_dim, c.v_head_dim}) <= most,
            "LatentAttention: with ", c.heads, " heads, sizes must be at most ", most, ", but embed_dim is ",
            c.embed_dim, ", q_rank ", c.q_rank, ", latent ", c.latent.rank, " + ", c.latent.rope_dim, ", nope_dim ",
            c.nope_dim, " and v_head_dim ", c.v_head_dim);
    require(!c.rope || c.rope->config().head_dim == c.latent.rope_dim, "LatentAttention: the head_dim of the rope is ",
            c.rope ? c.rope->config().head_dim : 0, ", but latent.rope_dim is ", c.latent.rope_dim);
    require(std::isfinite(c.scale_factor) && c.scale_factor > 0 && std::isfinite(c.norm_eps) && c.norm_eps >= 0,
            "LatentAttention: scale_factor ", c.scale_factor, " must be positive, and norm_eps ", c.norm_eps,
            " not negative");
    return c;
  }
  /// Adds a weight with the initial values of PyTorch's Linear; see MultiHeadParameters.
  void add(const char* name, Index outputs, Index inputs) {
    named_.add_weight(name, outputs, inputs, 1 / std::sqrt(static_cast<double>(inputs)), config_.seed);
  }

  LatentAttentionConfig config_;
  Parameters<T> named_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
