// The configuration, call options and results of a MultiHeadAttention.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "attn/options.h"
#include "attn/rope.h"
#include "attn/tensor.h"

namespace attn {

/// Which features an RMS norm of queries or keys spans.
enum class NormScope {
  head,       ///< each head of a token: Qwen3, Gemma 3
  all_heads,  ///< all heads of a token together: OLMo 2
};

/// The configuration of a MultiHeadAttention. Sizes count features or heads; 0 selects the default unless a size is
/// required.
struct MultiHeadConfig {
  Index embed_dim = 0;     ///< features of the query and of the result; required
  Index heads = 0;         ///< heads of the query; required
  Index kv_heads = 0;      ///< heads of key and value, a divisor of heads (Ainslie et al. 2023). Default heads
  Index head_dim = 0;      ///< features of a head of query and key. Default embed_dim / heads
  Index v_head_dim = 0;    ///< features of a head of value. Default head_dim
  Index key_dim = 0;       ///< features of the key input. Default embed_dim
  Index value_dim = 0;     ///< features of the value input. Default embed_dim
  bool bias = true;        ///< whether projections have biases
  std::uint64_t seed = 0;  ///< seed of the random initial weights
  std::optional<bool> in_bias = std::nullopt;   ///< whether input projections have biases. Default `bias`
  std::optional<bool> out_bias = std::nullopt;  ///< whether the output projection has a bias. Default `bias`
  /// Rotates projected queries and keys by their positions: key j of a call is at Options::kv_offset + j, query i at
  /// q_offset + i. With a RopeAxes, these are the positions on all axes, unless a cache has stored others.
  std::optional<Rope> rope = std::nullopt;
  /// Divides projected queries and keys, before the rope, by the root of the mean of their squares, and multiplies them
  /// by the weights q_norm.weight and k_norm.weight, initially 1 (Zhang & Sennrich 2019, eq. 4; Henry et al. 2020). For
  /// weights that are stored as differences from 1, as in Gemma, load 1 + weight.
  bool qk_norm = false;
  NormScope qk_norm_scope = NormScope::head;  ///< the features that are normalised together
  double qk_norm_eps = 1e-6;                  ///< added to the mean of the squares
  /// Lets every query also see a learned key and value, the parameters bias_k and bias_v, as PyTorch's option of this
  /// name does. They have no position: masks and other mods do not apply to them, and a rope cannot be combined with
  /// them.
  bool add_bias_kv = false;
  /// Lets every query also see a key and a value of zeros. Masks and other mods do not apply to them; a rope may be
  /// combined with them.
  bool add_zero_attn = false;
  /// Multiplies the results of the heads by sigmoid(gate), where the gate is a further projection of the query input
  /// (Qiu et al. 2025, "Gated Attention for Large Language Models"). q_proj_weight has, for each head, head_dim rows
  /// for the query and then v_head_dim rows for the gate, as in Qwen3-Next.
  bool output_gate = false;
};

namespace detail {
/// A MultiHeadConfig whose rope is given in braces; see KvCacheWithRopeInBraces.
struct MultiHeadWithRopeInBraces {
  Index embed_dim, heads, kv_heads, head_dim, v_head_dim, key_dim, value_dim;
  bool bias;
  std::uint64_t seed;
  std::optional<bool> in_bias, out_bias;
  RopeConfig rope;
  bool qk_norm;
  NormScope qk_norm_scope;
  double qk_norm_eps;
  bool add_bias_kv, add_zero_attn, output_gate;
};
}  // namespace detail

/// Which implementation computes the attention of the heads.
enum class Path { flash, naive };

/// Options of one call of a MultiHeadAttention.
struct MultiHeadOptions {
  /// Implementation of the heads' attention and its gradients. (Gradients of a layer with add_bias_kv or add_zero_attn
  /// are always computed by `flash`.)
  Path path = Path::flash;
  /// Return the weights of every head, with weight mods and dropout applied. They take memory for all q_len * kv_len
  /// pairs, and the call runs on the naive path.
  bool weights = false;
  bool lse = false;    ///< Return the log-sum-exp of every query and head.
  bool heads = false;  ///< Return copies of the projected heads, with queries and keys rotated if there is a rope.
  bool keep = false;   ///< Return everything that backward() needs: lse, heads, and the concatenated results.
  /// The Options of the heads. Executor, instruction set, `compute` and row_invariant also apply to the projections,
  /// all other options to the heads alone. The workspace is not used.
  Options attention = {};
  /// Cannot be set: that fails to compile, with a message that says masks are mods.
  /// @{
  detail::MaskIsNoOption mask{}, key_padding_mask{};
  /// @}
};

namespace detail {

/// Types that may be passed in place of mods.
template <class X>
concept AnyOptions = std::same_as<X, Options> || std::same_as<X, MultiHeadOptions>;

}  // namespace detail

/// The result of a MultiHeadAttention. It converts to its `out`, so that `Tensor<float, 3> y = layer(x, x, x);` works.
template <class Out, class T>
struct MultiHeadResult {
  Out out;  ///< (batch, q_len, embed_dim), or (q_len, embed_dim) for matrices
  // The members below are empty unless options request them.
  /// (batch, heads, q_len, kv_len), with one more column each for add_bias_kv and add_zero_attn, in this order.
  Tensor<T, 4> weights;
  Tensor<detail::computed_t<T>, 3> lse;  ///< (batch, heads, q_len), float if T is 16-bit
  Tensor<T, 4> query;                    ///< (batch, heads, q_len, head_dim)
  Tensor<T, 4> key;                      ///< (batch, kv_heads, tokens, head_dim), for the tokens of this call
  Tensor<T, 4> value;                    ///< (batch, kv_heads, tokens, v_head_dim), for the tokens of this call
  /// (batch, q_len, heads * v_head_dim): concatenated results of the heads, before gate and output projection
  Tensor<T, 3> joined;

  /// A copy of `out`.
  operator Out() const& { return out; }
  /// Moves `out` out of a temporary.
  operator Out() && { return std::move(out); }
};

}  // namespace attn
