// The optional settings of a call, such as scale, positions and executor.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "attn/core/base/names_only.h"
#include "attn/isa.h"
#include "attn/lists.h"
#include "attn/parallel.h"

namespace attn {

/// The precision of the products of a call.
enum class Compute {
  /// In the precision of the tensors: bfloat16 tensors in bfloat16 if the processor has a matrix unit or vector
  /// instructions for it, all others in float or better.
  native,
  /// Query, key, value and weights may be rounded to bfloat16, which is several times faster with a matrix unit.
  bf16,
};

/// The function that turns the scores of a query into weights.
class Normaliser {
 public:
  /// e^score divided by the sum of all e^score: the weights of a query sum to 1.
  static constexpr Normaliser softmax() { return {}; }

  /// 1 / (1 + e^-(score + bias)), independently for each pair: out = sum over keys of weight * value (Ramapuram et al.
  /// 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", section 2). The authors train with a bias
  /// of -ln(kv_len), so that weights sum to about 1 at first. To add a bias that depends on the pair, use a score mod.
  /// Pairs that masks drop have weight 0, and a query that keeps no key gives 0.
  ///
  /// There is no log-sum-exp: `lse` of a result is empty, and calls that pass an `lse` to write to are rejected.
  /// sinks() is rejected too, because it adds to the denominator of a softmax. Results over different keys are added,
  /// not merged. No product is computed in bfloat16. Cost: 1.00 to 1.06 times that of the softmax, at head_dim 64 and
  /// 128.
  static constexpr Normaliser sigmoid(double bias = 0) {
    Normaliser n;
    n.sigmoid_bias_ = bias;
    return n;
  }

  /// The bias of sigmoid(); empty for a softmax.
  constexpr const std::optional<double>& sigmoid_bias() const { return sigmoid_bias_; }

 private:
  std::optional<double> sigmoid_bias_;
};

/// Optional settings of a call: `attention(q, k, v, mods, {.scale = 0.25, .executor = serial()})`. Without mods, they
/// take the place of mods: `attention(q, k, v, {.scale = 0.25})`.
struct Options {
  detail::NamesOnly names_only{};  ///< Rejects unnamed numbers, such as `{2, 0}`. It has no other use.
  /// Cannot be set: these names, some of them PyTorch's, fail to compile, with a message that says what to write.
  /// @{
  detail::MaskIsNoOption mask{}, attn_mask{}, causal{}, is_causal{};
  detail::NoOption<detail::Elsewhere::dropout> dropout_p{};
  detail::NoOption<detail::Elsewhere::shared_heads> enable_gqa{};
  detail::NoOption<detail::Elsewhere::threads> threads{};
  /// @}

  /// Multiplies query * key. Default 1/sqrt(head_dim) (Vaswani et al. 2017, eq. 1); 1 is the dot-product score of Luong
  /// et al. (2015, section 3.1). additive_attention() multiplies its additive score by `scale`, which is 1 by default
  /// there.
  std::optional<double> scale = std::nullopt;

  /// Absolute position of query row 0. By default it is kv_offset + kv_len - q_len: the last query sees the last key
  /// ("bottom-right"), so that prefill, chunked prefill and decoding are the same call. 0 lets the first query see the
  /// first key ("top-left").
  std::optional<Index> q_offset = std::nullopt;

  /// A q_offset for each batch element, or for each sequence of a cache: `.q_offsets = {0, 7}`, or any range of
  /// integers. If it is empty, q_offset applies to all. The results are those of one call per element. The call
  /// allocates a few hundred bytes per element, even with a workspace.
  Indices q_offsets = {};

  /// Absolute position of key row 0, by default 0. Set it if the keys are a part of a longer sequence, and set q_offset
  /// to the position of the queries. The result is then that of a call over all keys in which masks drop the keys
  /// outside this part. Data that mods hold for keys (lengths, ids, lists, tensors) refers to all keys and must cover
  /// those of the call.
  ///
  ///     // keys 512..1023 of a longer sequence, and queries that follow them
  ///     attention(q, k, v, documents(ids) | causal(), {.q_offset = 2048, .kv_offset = 512});
  ///
  /// 0 is not the same as unset: it says that more keys may follow. See accumulate for how to combine parts. Over a
  /// cache, kv_offset is the position of the first token that each sequence still has, for example after a window has
  /// dropped earlier tokens. Rows are counted from this token, and a Rope rotates queries by the positions of their
  /// rows.
  std::optional<Index> kv_offset = std::nullopt;

  /// Whether query head h uses key and value head h mod kv_heads, rather than h / (heads / kv_heads): query heads that
  /// share keys are then not neighbours. Mods see the numbers of the query heads as they are. A list of select() for
  /// each key head is rejected, because such heads would not share it; so are recurrent forms, additive_attention() and
  /// mpi::Ring. A fused pass over lists computes gradients one head at a time.
  bool interleaved_heads = false;

  /// Makes attention_into() continue from `out` and `lse`, which hold the result of the same queries over other keys:
  /// the call updates them to the result over those keys and its own. Keys can thus be passed in parts, one after the
  /// other:
  ///
  ///     attention_into(out, lse, q, k0, v0, mods, {.q_offset = p, .kv_offset = 0});
  ///     attention_into(out, lse, q, k1, v1, mods, {.q_offset = p, .kv_offset = n, .accumulate = true});
  ///
  /// The result is that of merge(), but no second result is stored. A row whose lse is -inf has no keys yet, and its
  /// out is not read. Sinks are included only by a call without accumulate; that call may have no keys. With sigmoids,
  /// the call adds to out, and there is no lse. Each call rounds a 16-bit output; a float output is not rounded.
  ///
  /// attention_backward_into() adds to the contents of its gradients, except the gradients of sinks, which only a call
  /// without accumulate computes. Pass the out and lse of all keys with each part. All functions that return their
  /// result reject accumulate, and so do calls with a weight_mod() of a softmax.
  bool accumulate = false;

  /// Runs the tasks. The default is all cores, or the calling thread alone if there is little work. Results are
  /// bit-identical with any executor.
  Executor executor = {};

  /// Scratch memory for the call: at least workspace_bytes() bytes, of any alignment and with any contents. Each
  /// concurrent call needs its own. By default the call allocates and frees its own. The naive path does not use it.
  /// Some cases still allocate: q_offsets; an `lse` in a Tensor, when an element first reaches 8 or -8; learned();
  /// select() with a kv_offset; a cache (see cached_attention.h); additive attention; and a mask that groups tokens,
  /// such as strided_sparse(), with a 16-bit output and a query of a wider scalar type.
  std::span<std::byte> workspace = {};

  /// The precision of products. `bf16` speeds up float and half tensors. Rounding values and weights adds an error of
  /// about 2^-8 of the largest value. Rounding query and key changes scores by about 2^-8 of scale * sum |q||k|, which
  /// matters if scores are large. Sums and the softmax stay in float.
  ///
  /// Nothing is rounded in these cases: there is no matrix unit (explain() reports this); queries are single and heads
  /// do not share bfloat16 keys and values; a mod changes weights; results are not finite; or the naive path is used.
  Compute compute = Compute::native;

  /// The instruction set to use, for tests and comparisons. The default is default_isa(). An unavailable set throws
  /// std::invalid_argument.
  std::optional<Isa> isa = std::nullopt;

  /// Turns scores into weights: `{.normaliser = Normaliser::sigmoid(-std::log(n))}`. Default softmax.
  Normaliser normaliser = {};

  /// Makes the bits of a row of `out` and of `lse` depend on nothing but its query, the keys and values that it may
  /// see, their positions, its batch element and head where mods use them, the mods, the scale, the scalar types and
  /// the instruction set. So a token gets the same bits in a prompt, in chunks of any length, alone, in any batch, with
  /// any other heads, in a tensor or in a cache with any pages and capacity, and with any executor. This holds for
  /// attention() and attention_into(), over tensors and caches, additive_attention(), recurrent forms and their states,
  /// linear_into() and MultiHeadAttention, but not for gradients, attention_jvp(), attention weights and the naive
  /// path. In mpi::Ring, attention_by_heads() has this property; calls that merge results of ranks, in an order that
  /// depends on the layout, throw std::invalid_argument.
  ///
  /// All queries are then computed in tiles, as in prompts. Keys are not split over threads, masks do not group tokens,
  /// and nothing is rounded to bfloat16 or multiplied in integers, whatever `compute` is. Prompts in float take no
  /// longer. Single queries take 0.7 to 2 times as long with keys in memory, depending on how many heads share a key
  /// head, and 2 to 8 times with keys in the processor's cache; up to eight queries take 1 to 2 times as long (see
  /// bench/README.md). The size of the workspace then also depends on sinks, dropout, kv_offset and accumulate.
  /// Recurrent forms proceed token by token, so prompts take 0.7 to 1.5 times as long.
  ///
  /// With accumulate, bits do not depend on how keys are divided into calls, provided that parts come in order, each
  /// begins at a kv_offset that is a multiple of 4096, `out` is not rounded to 16 bits, and `lse` is an attn::Tensor.
  /// To this end, the results of each block of 4096 keys are computed separately and merged in order. Each merge
  /// rounds: with a million keys, errors are up to 10 epsilons larger than without the option.
  ///
  /// A kv_offset must be a multiple of 16. The bits of a row still depend on other things in three cases. A cache
  /// rotates keys by their distance to kv_offset, so the bits depend on kv_offset. 16-bit layers with a rope round
  /// rotated queries without a cache, but not with one. If a lambda adds a product to something, g++ may fuse the
  /// multiplication and the addition for single pairs and not for whole vectors, or the reverse; on x86,
  /// -ffp-contract=off prevents this and does not affect the kernels.
  ///
  /// Without ropes and score mods, AVX2, AVX-512 and 64-bit ARM give the same bits of `out` in float and double.
  bool row_invariant = false;
};

}  // namespace attn

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The name in ATTN_ISA, if the call would use it but it is not available; otherwise empty.
inline std::string_view ignored_isa(const Options& options) {
  return options.isa ? std::string_view() : std::string_view(isa_of_environment().ignored);
}

/// The instruction set that a call uses. @throws std::invalid_argument if the requested one is not available.
inline Isa isa_of(const Options& options) { return options.isa ? checked_isa(*options.isa) : default_isa(); }

}  // namespace attn::detail::inline ATTN_BUILT_FOR
