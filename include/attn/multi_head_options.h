// What a MultiHeadAttention is made of, how it is called, and what it returns.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "attn/options.h"
#include "attn/rope.h"
#include "attn/tensor.h"

namespace attn {

/// What a MultiHeadAttention is made of. Sizes count features or heads; 0 stands for the default, if there is one.
struct MultiHeadConfig {
  Index embed_dim = 0;     ///< features of the query and of the result; there is no default
  Index heads = 0;         ///< heads of the query, each of embed_dim / heads features; there is no default
  Index kv_heads = 0;      ///< heads of key and value, a divisor of heads (Ainslie et al. 2023). Default heads
  Index key_dim = 0;       ///< features of the key input. Default embed_dim
  Index value_dim = 0;     ///< features of the value input. Default embed_dim
  bool bias = true;        ///< whether projections have biases
  std::uint64_t seed = 0;  ///< decides the random initial weights
  std::optional<bool> in_bias = std::nullopt;   ///< whether query, key and value have them. Default `bias`
  std::optional<bool> out_bias = std::nullopt;  ///< whether the result has one. Default `bias`
  /// Turns projected queries and keys by their positions: key j of a call is at Options::kv_offset + j, query i at
  /// q_offset + i.
  std::optional<Rope> rope = std::nullopt;
};

/// Which implementation computes the attention of the heads.
enum class Path { flash, naive };

/// How one call of a MultiHeadAttention is computed.
struct MultiHeadOptions {
  Path path = Path::flash;  ///< computes the attention of the heads, and its gradients
  /// Return the weights of every head, dropout included. They take memory for all q_len * kv_len pairs, and the call
  /// runs on the naive path.
  bool weights = false;
  bool lse = false;    ///< Return the log-sum-exp of every query and head.
  bool heads = false;  ///< Return copies of the projected heads; queries and keys are turned, if there is a rope.
  bool keep = false;   ///< Return what backward() needs: lse, heads, and the joined results of the heads.
  /// The Options of the heads. Scale (default 1/sqrt(head_dim)) and q_offset are for the heads; executor, instruction
  /// set and `compute` are for heads and projections. The workspace is not used.
  Options attention = {};
};

namespace detail {

/// What may stand in place of mods.
template <class X>
concept AnyOptions = std::same_as<X, Options> || std::same_as<X, MultiHeadOptions>;

}  // namespace detail

/// What a MultiHeadAttention returns. It converts to its `out`, so that `Tensor<float, 3> y = layer(x, x, x);` works.
template <class Out, class T>
struct MultiHeadResult {
  Out out;  ///< (batch, q_len, embed_dim), or (q_len, embed_dim) of matrices
  // What follows is empty unless options ask for it.
  Tensor<T, 4> weights;                  ///< (batch, heads, q_len, kv_len)
  Tensor<detail::computed_t<T>, 3> lse;  ///< (batch, heads, q_len), float where T has 16 bits
  Tensor<T, 4> query;                    ///< (batch, heads, q_len, head_dim)
  Tensor<T, 4> key;                      ///< (batch, kv_heads, tokens, head_dim), of the tokens of this call
  Tensor<T, 4> value;                    ///< (batch, kv_heads, tokens, head_dim), of the tokens of this call
  Tensor<T, 3> joined;  ///< (batch, q_len, embed_dim): results of the heads side by side, before the last projection

  /// A copy of `out`.
  operator Out() const& { return out; }
  /// `out` itself, moved out of a temporary.
  operator Out() && { return std::move(out); }
};

}  // namespace attn
