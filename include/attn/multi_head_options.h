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

/// The configuration of a MultiHeadAttention. Sizes count features or heads; 0 stands for the default unless a size is
/// required.
struct MultiHeadConfig {
  Index embed_dim = 0;     ///< features of the query and of the result; required
  Index heads = 0;         ///< heads of the query, each of embed_dim / heads features; required
  Index kv_heads = 0;      ///< heads of key and value, a divisor of heads (Ainslie et al. 2023). Default heads
  Index key_dim = 0;       ///< features of the key input. Default embed_dim
  Index value_dim = 0;     ///< features of the value input. Default embed_dim
  bool bias = true;        ///< whether projections have biases
  std::uint64_t seed = 0;  ///< seed of the random initial weights
  std::optional<bool> in_bias = std::nullopt;   ///< whether input projections have biases. Default `bias`
  std::optional<bool> out_bias = std::nullopt;  ///< whether the output projection has one. Default `bias`
  /// Rotates projected queries and keys by their positions: key j of a call is at Options::kv_offset + j, query i at
  /// q_offset + i.
  std::optional<Rope> rope = std::nullopt;
};

namespace detail {
/// A MultiHeadConfig whose rope is given in braces; see KvCacheWithRopeInBraces.
struct MultiHeadWithRopeInBraces {
  Index embed_dim, heads, kv_heads, key_dim, value_dim;
  bool bias;
  std::uint64_t seed;
  std::optional<bool> in_bias, out_bias;
  RopeConfig rope;
};
}  // namespace detail

/// Which implementation computes the attention of the heads.
enum class Path { flash, naive };

/// Options of one call of a MultiHeadAttention.
struct MultiHeadOptions {
  Path path = Path::flash;  ///< implementation of the heads' attention and its gradients
  /// Return the weights of every head, with dropout applied. They take memory for all q_len * kv_len pairs, and the
  /// call runs on the naive path.
  bool weights = false;
  bool lse = false;    ///< Return the log-sum-exp of every query and head.
  bool heads = false;  ///< Return copies of the projected heads, with queries and keys rotated if there is a rope.
  bool keep = false;   ///< Return everything that backward() needs: lse, heads, and the concatenated results.
  /// The Options of the heads. Executor, instruction set and `compute` apply to the projections too, all other options
  /// to the heads alone. The workspace is not used.
  Options attention = {};
  detail::MaskIsNoOption mask{};  ///< Cannot be set: that fails to compile, with a message that says masks are mods.
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
  Tensor<T, 4> weights;                  ///< (batch, heads, q_len, kv_len)
  Tensor<detail::computed_t<T>, 3> lse;  ///< (batch, heads, q_len), float if T is 16-bit
  Tensor<T, 4> query;                    ///< (batch, heads, q_len, head_dim)
  Tensor<T, 4> key;                      ///< (batch, kv_heads, tokens, head_dim), for the tokens of this call
  Tensor<T, 4> value;                    ///< (batch, kv_heads, tokens, head_dim), for the tokens of this call
  Tensor<T, 3> joined;  ///< (batch, q_len, embed_dim): concatenated results of the heads, before the output projection

  /// A copy of `out`.
  operator Out() const& { return out; }
  /// Moves `out` out of a temporary.
  operator Out() && { return std::move(out); }
};

}  // namespace attn
