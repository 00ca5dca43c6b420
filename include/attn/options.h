// The numbers of a call. Types go in positional arguments, numbers go here.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "attn/detail/base/names_only.h"
#include "attn/isa.h"
#include "attn/lists.h"
#include "attn/parallel.h"

namespace attn {

/// How exactly the products of a call are formed.
enum class Compute {
  /// In the precision of the tensors: bfloat16 tensors in bfloat16, where the processor has a matrix unit or vectors
  /// for it, all others in float or better.
  native,
  /// Query, key, value and weights may be rounded to bfloat16: several times faster where there is a matrix unit.
  bf16,
};

/// What makes weights of the scores of a query.
class Normaliser {
 public:
  /// e^score over the sum of all e^score: the weights of a query sum to 1.
  static constexpr Normaliser softmax() { return {}; }

  /// 1 / (1 + e^-(score + bias)), each weight for itself: out = sum over keys of weight * value (Ramapuram et al. 2024,
  /// "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 2). They train with a bias of
  /// -ln(kv_len), so that weights sum to about 1 at first; one that depends on the pair is a score mod before it. Masks
  /// drop pairs as always, their weight is 0, and a query that keeps no key gives 0.
  ///
  /// There is no log-sum-exp: `lse` of a result is empty, an lse to be written is refused, and so is sinks(), which
  /// joins a softmax's denominator. Parts over different keys are added up, not merged.
  /// No product is formed in bfloat16. Cost: 1.00 to 1.06 times that of the softmax, at head_dim 64 and 128.
  static constexpr Normaliser sigmoid(double bias = 0) {
    Normaliser n;
    n.sigmoid_bias_ = bias;
    return n;
  }

  /// The bias of sigmoid(); none for a softmax.
  constexpr const std::optional<double>& sigmoid_bias() const { return sigmoid_bias_; }

 private:
  std::optional<double> sigmoid_bias_;
};

/// What a call may set, all optional: `attention(q, k, v, mods, {.scale = 0.25, .executor = serial()})`. Without mods
/// they stand in the place of these: `attention(q, k, v, {.scale = 0.25})`.
struct Options {
  detail::NamesOnly names_only{};  ///< Makes `{2, 0}`, without names, no options. It has no other use.
  detail::MaskIsNoOption mask{};   ///< Cannot be set: the compiler says that a mask is a mod. It has no other use.

  /// Multiplies query * key. Default 1/sqrt(head_dim) (Vaswani et al. 2017, eq. 1); 1 is the dot-product score of Luong
  /// et al. (2015, section 3.1). additive_attention() multiplies its score by it, by default 1.
  std::optional<double> scale = std::nullopt;

  /// Absolute position of query row 0. By default it is kv_offset + kv_len - q_len: the last query sees the last key
  /// ("bottom-right"), so that prefill, chunked prefill and decoding are the same call. 0 lets the first query see the
  /// first key ("top-left").
  std::optional<Index> q_offset = std::nullopt;

  /// A q_offset for each batch element, or for each sequence of a cache: `.q_offsets = {0, 7}`, or any range of
  /// integers. If it is empty, q_offset holds for all. The results are those of one call for each element. The call
  /// allocates some hundred bytes for each, even with a workspace.
  Indices q_offsets = {};

  /// Absolute position of key row 0, by default 0. With it, the keys may be a part of more keys, from a position on.
  /// The call then gives what a call over all keys gives whose masks drop the others, if q_offset says where the
  /// queries are. What mods hold of keys (lengths, ids, lists, tensors) is for all keys, and must reach as far as those
  /// of the call.
  ///
  ///     // keys 512..1023 of more, and queries that stand behind them
  ///     attention(q, k, v, documents(ids) | causal(), {.q_offset = 2048, .kv_offset = 512});
  ///
  /// 0 is not the same as nothing: it says that more keys may follow. See accumulate for how parts become the whole.
  /// Over a cache it is the position of the first token that each sequence still has, as where a window has dropped
  /// those before it; a Rope turns queries for their distance to it.
  std::optional<Index> kv_offset = std::nullopt;

  /// Makes attention_into() go on: `out` and `lse` hold the result of the same queries over other keys, and the call
  /// turns it into the result over those keys and its own. So parts of the keys become the whole, one after the other:
  ///
  ///     attention_into(out, lse, q, k0, v0, mods, {.q_offset = p, .kv_offset = 0});
  ///     attention_into(out, lse, q, k1, v1, mods, {.q_offset = p, .kv_offset = n, .accumulate = true});
  ///
  /// This is what merge() computes, without a second result. A row whose lse is -inf has no keys yet, and what stands
  /// in its out is not read. Sinks are counted by calls that begin, not by those that go on; a call may begin with no
  /// keys. With sigmoids, out is added to and there is no lse. An output of 16 bits is rounded by each call, one of
  /// float is not.
  ///
  /// attention_backward_into() adds to what stands in its gradients, and leaves those of sinks to calls that begin.
  /// Each part is given the out and lse of all keys. All functions that return their result refuse to accumulate.
  bool accumulate = false;

  /// Runs the tasks. By default all cores do, or the calling thread alone if there is little work. Results are the same
  /// bit for bit with any executor.
  Executor executor = {};

  /// Memory for the call to work in: at least as many bytes as workspace_bytes() says, of any alignment and with any
  /// contents. Concurrent calls need one each. By default the call allocates and frees its own. The naive path does not
  /// use it. One case allocates more: a mask that groups tokens, such as strided_sparse(), with an output of 16 bits
  /// and a query of more.
  std::span<std::byte> workspace = {};

  /// How exactly products are formed. `bf16` buys speed for tensors of float or half. Rounding values and weights adds
  /// an error of about 2^-8 of the largest value. Rounding query and key moves scores by about 2^-8 of scale * sum
  /// |q||k|, which is much where scores are large. Sums and the softmax stay in float.
  ///
  /// Nothing is rounded if there is no matrix unit (explain() says so), for single queries (unless heads share keys and
  /// values that are bfloat16), where results are not finite, and on the naive path.
  Compute compute = Compute::native;

  /// The instruction set to use, for tests and comparisons. The default is default_isa(). A set that is not available
  /// throws std::invalid_argument.
  std::optional<Isa> isa = std::nullopt;

  /// What makes weights of the scores: `{.normaliser = Normaliser::sigmoid(-std::log(n))}`. Default softmax.
  Normaliser normaliser = {};
};

}  // namespace attn

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The name in ATTN_ISA, if the call would use it but it is not available; otherwise empty.
inline std::string_view ignored_isa(const Options& options) {
  return options.isa ? std::string_view() : std::string_view(isa_of_environment().ignored);
}

/// The instruction set that a call uses. @throws std::invalid_argument if the one asked for is not available.
inline Isa isa_of(const Options& options) { return options.isa ? checked_isa(*options.isa) : default_isa(); }

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
