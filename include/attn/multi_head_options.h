// What a MultiHeadAttention is made of, how it is called, and what it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "attn/options.h"
#include "attn/rope.h"
#include "attn/tensor.h"

namespace attn {

/// The sizes of a MultiHeadAttention, all numbers of features or heads, of which 0 stands for the default given here;
/// and what else it is made of.
struct MultiHeadConfig {
  Index embed_dim = 0;     ///< of the query and of the result; there is no default
  Index heads = 0;         ///< of the query, each of embed_dim / heads features; there is no default
  Index kv_heads = 0;      ///< of key and value, a divisor of heads (Ainslie et al. 2023). Default heads
  Index key_dim = 0;       ///< of the key input. Default embed_dim
  Index value_dim = 0;     ///< of the value input. Default embed_dim
  bool bias = true;        ///< has every projection a bias?
  std::uint64_t seed = 0;  ///< of the random initial weights
  std::optional<bool> in_bias = std::nullopt;   ///< have those of query, key and value? Default `bias`
  std::optional<bool> out_bias = std::nullopt;  ///< has that of the result? Default `bias`
  /// Turns projected queries and keys by their positions: key j of a call is at j, query i at Options::q_offset + i.
  std::optional<Rope> rope = std::nullopt;
};

/// Which implementation computes the attention of the heads.
enum class Path { flash, naive };

/// How one call of a MultiHeadAttention is computed.
struct MultiHeadOptions {
  Path path = Path::flash;
  /// Give out the weights of every head. They need memory for all q_len * kv_len pairs, so the call takes the naive
  /// path.
  bool weights = false;
  bool lse = false;  ///< Give out the log-sum-exp of every query and head.
  bool heads =
      false;  ///< Give out the projected inputs as heads, copied: queries and keys as the rope has turned them.
  /// Scale (default 1/sqrt(head_dim)) and q_offset of the heads; executor, instruction set and `compute` of heads and
  /// projections. A workspace in it is not used.
  Options attention = {};
};

/// What a MultiHeadAttention returns. Converts to its `out`, so that `Tensor<float, 3> y = layer(x, x, x);` works.
template <class Out, class T>
struct MultiHeadResult {
  Out out;  ///< (batch, q_len, embed_dim), or (q_len, embed_dim) of matrices
  // Those of the heads, empty unless asked for.
  Tensor<T, 4> weights;                  ///< (batch, heads, q_len, kv_len)
  Tensor<detail::computed_t<T>, 3> lse;  ///< (batch, heads, q_len), float where T has 16 bits
  Tensor<T, 4> query;                    ///< (batch, heads, q_len, head_dim)
  Tensor<T, 4> key, value;               ///< (batch, kv_heads, tokens, head_dim), of the tokens of this call

  operator Out() const& { return out; }
  operator Out() && { return std::move(out); }
};

}  // namespace attn
