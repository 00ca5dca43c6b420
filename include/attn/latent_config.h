// The configuration of a LatentAttention.
#pragma once

#include <cstdint>
#include <optional>

#include "attn/kv_caches.h"

namespace attn {

/// The configuration of a LatentAttention. Sizes count features or heads.
struct LatentAttentionConfig {
  Index embed_dim = 0;       ///< features of a token (hidden_size); required
  Index heads = 0;           ///< heads of the query (num_attention_heads); required
  Index q_rank = 0;          ///< features of the compressed query (q_lora_rank); 0: the query is not compressed
  LatentConfig latent = {};  ///< the latent row of a token: kv_lora_rank, required, and qk_rope_head_dim
  Index nope_dim = 0;        ///< features of a head of query and key that are not rotated (qk_nope_head_dim); required
  Index v_head_dim = 0;      ///< features of a head of value. Default nope_dim
  /// Rotates the last rope_dim features of each query head, and those of the latent row. Its head_dim is rope_dim.
  /// DeepSeek's checkpoints have RopePairs::interleaved. Without it, no feature is rotated.
  std::optional<Rope> rope = std::nullopt;
  /// The default scale of scores is this factor / sqrt(nope_dim + rope_dim). With YaRN, DeepSeek-V3 has the factor
  /// (0.1 * mscale_all_dim * ln(rope factor) + 1)², and the rope's attention_factor is 1.
  double scale_factor = 1;
  double norm_eps = 1e-6;  ///< added to the mean of the squares by q_a_layernorm and kv_a_layernorm (rms_norm_eps)
  std::uint64_t seed = 0;  ///< seed of the random initial weights
};

namespace detail {
/// A LatentAttentionConfig whose rope is given in braces; see KvCacheWithRopeInBraces.
struct LatentWithRopeInBraces {
  Index embed_dim, heads, q_rank;
  LatentConfig latent;
  Index nope_dim, v_head_dim;
  RopeConfig rope;
  double scale_factor, norm_eps;
  std::uint64_t seed;
};
}  // namespace detail

}  // namespace attn
