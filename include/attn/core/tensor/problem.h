// Checks the sizes of a call's arguments.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "attn/core/base/check.h"
#include "attn/core/tensor/dtype_view.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Whether a row may have this position. Sums of a few such positions do not overflow, and stay below
/// detail::kUnbounded.
constexpr bool is_near(Index position) { return position >= -kLargestIndex && position <= kLargestIndex; }

/// Checks the list of positions of query row 0, if there is one.
inline void check_q_offsets(const Options& options, Index batch) {
  const std::span<const Index> each = options.q_offsets.values;
  if (each.empty()) return;
  require(!options.q_offset, "q_offset ", options.q_offset.value_or(0), " and ", each.size(),
          " q_offsets are given; give either one for all, or one per batch element");
  require(static_cast<Index>(each.size()) == batch, "got ", each.size(), " q_offsets for a batch of ", batch);
  for (std::size_t b = 0; b < each.size(); ++b)
    require(is_near(each[b]), "q_offsets[", b, "] must be within ±2^", kIndexBits, ", but is ", each[b]);
}

/// The requested position of query row 0 of a batch element or sequence.
inline std::optional<Index> q_offset_of(const Options& options, Index sequence) {
  const std::span<const Index> each = options.q_offsets.values;
  return each.empty() ? options.q_offset : each[static_cast<std::size_t>(sequence)];
}

/// Fills in the positions of key row 0 and of query row 0. A list in `options` must live as long as `problem`.
inline void set_offsets(Problem& problem, const Options& options) {
  problem.kv_offset = options.kv_offset.value_or(0);
  problem.has_part_of_keys = options.kv_offset.has_value();
  require(is_near(problem.kv_offset) && is_near(problem.kv_offset + problem.kv_len),
          "the positions of keys must be within ±2^", kIndexBits, ", but kv_offset is ", problem.kv_offset,
          " and kv_len is ", problem.kv_len);
  check_q_offsets(options, problem.batch);
  problem.q_offset = options.q_offset.value_or(problem.keys().end - problem.q_len);
  problem.q_offsets = options.q_offsets.values;
  require(is_near(problem.q_offset), "q_offset must be within ±2^", kIndexBits, ", but is ", problem.q_offset);
}

/// The likely remedy if sizes disagree, appended to the error message; shapes are (batch, heads, len, dim).
inline const char* likely_remedy(const Shape<4>& q, const Shape<4>& k, const Shape<4>& v) {
  if (k[3] != q[3] && v[3] == q[3] && v[2] == k[2]) return "; are key and value swapped?";
  if (k[3] == q[3] && v[2] == q[2] && v[2] != k[2]) {
    const bool exchanged = k[1] > q[1];  // no valid call has more key heads
    return exchanged ? "; are query and key swapped?"
                     : "; do key and value belong to different tokens, or are query and key swapped?";
  }
  if (q[3] != k[3] && q[2] == k[3])
    return "; each row must be a token, but query has its tokens in columns: pass query.transpose(), or transpose(2, "
           "3) of a tensor";
  if (q[3] != k[3] && k[2] == q[3])
    return "; each row must be a token, but key has its tokens in columns: pass key.transpose(), or transpose(2, 3) of "
           "a tensor";
  if (k[2] != v[2] && k[2] == v[3])
    return "; each row must be a token, but value has its tokens in columns: pass value.transpose(), or transpose(2, "
           "3) of a tensor";
  const bool looks_like_tokens =
      k[1] != v[1] ? k[1] == v[2] || k[2] == v[1] : q[1] != k[1] && k[2] > 0 && q[2] % k[2] == 0;
  if (looks_like_tokens && (k[1] != v[1] || (k[1] > 0 && q[1] % k[1] != 0)))
    return "; for memory in the order (batch, len, heads, dim), use attn::bshd()";
  if (k[1] == v[1] && k[1] > q[1]) return "; several query heads may share a key head, not the other way round";
  return "";
}

/// Refuses sizes that disagree, with all shapes and a likely remedy.
template <class... Pieces>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_sizes(const Shape<4>& q, const Shape<4>& k, const Shape<4>& v,
                                                         const Pieces&... pieces) {
  refuse({Piece(pieces)..., "; shapes: query ", q, ", key ", k, ", value ", v, " as (batch, heads, len, dim)",
          likely_remedy(q, k, v)});
}

/// Refuses interleaved heads in functions whose loops take the heads of a group to be neighbours.
inline void check_neighbouring_heads(const Options& options, const char* name) {
  require(!options.interleaved_heads, name,
          " needs consecutive query heads that share a key head, but interleaved_heads "
          "is true; reorder the heads of the query");
}

/// Where a call writes its results: into memory that it allocates, or into the caller's, which may already hold
/// results.
enum class Outputs { own, given };

/// Checks query (batch, heads, q_len, head_dim), key (batch, kv_heads, kv_len, head_dim) and value (batch, kv_heads,
/// kv_len, v_dim) against each other and fills in the defaults of `options`. Every path uses this, so that all refuse
/// the same calls with the same messages.
template <class T>
Problem make_problem(const DTypeView<const T>& q, const DTypeView<const T>& k, const DTypeView<const T>& v,
                     const Options& options, Outputs outputs = Outputs::own, bool changes_weights = false) {
  const auto sizes = [&](const char* what, Index a, const char* name_a, Index b, const char* name_b) {
    if (a != b) [[unlikely]]
      refuse_sizes(q.shape(), k.shape(), v.shape(), what, " differs: ", name_a, " has ", a, ", ", name_b, " has ", b);
  };
  sizes("batch", q.dim(0), "query", k.dim(0), "key");
  sizes("batch", k.dim(0), "key", v.dim(0), "value");
  sizes("number of heads", k.dim(1), "key", v.dim(1), "value");
  sizes("kv_len", k.dim(2), "key", v.dim(2), "value");
  sizes("head_dim", q.dim(3), "query", k.dim(3), "key");
  require(q.dim(1) > 0 && k.dim(1) > 0, "there must be at least one head: query has ", q.dim(1), ", key has ",
          k.dim(1));
  if (q.dim(1) % k.dim(1) != 0) [[unlikely]]
    refuse_sizes(q.shape(), k.shape(), v.shape(), "heads (", q.dim(1), ") must be a multiple of kv_heads (", k.dim(1),
                 ")");
  require(q.dim(3) > 0, "head_dim must be at least 1, but is ", q.dim(3));

  Problem p{.batch = q.dim(0),
            .heads = q.dim(1),
            .kv_heads = k.dim(1),
            .q_len = q.dim(2),
            .kv_len = k.dim(2),
            .head_dim = q.dim(3),
            .v_dim = v.dim(3)};
  // In double, as a caller would write it, unless the scalar type is more precise.
  using Fine = std::conditional_t<(sizeof(T) > sizeof(double)), T, double>;
  p.scale = options.scale ? static_cast<Fine>(*options.scale) : Fine(1) / std::sqrt(static_cast<Fine>(p.head_dim));
  require(std::isfinite(static_cast<T>(p.scale)), "scale must be finite in the scalar type of the tensors, but is ",
          p.scale);
  set_offsets(p, options);
  require(
      !options.accumulate || outputs == Outputs::given,
      "accumulate adds to outputs of the caller, so only attention_into() and attention_backward_into() support it");
  p.sigmoid_bias = options.normaliser.sigmoid_bias();
  require(std::isfinite(static_cast<T>(p.sigmoid_bias.value_or(0))),
          "the bias of a sigmoid must be finite in the scalar type of the tensors, but is ",
          p.sigmoid_bias.value_or(0));
  p.row_invariant = options.row_invariant;
  p.changes_weights = changes_weights;
  p.interleaved_heads = options.interleaved_heads;
  require(!options.accumulate || !changes_weights || p.sigmoid_bias,
          "weight_mod() needs the sum of the softmax over all keys, so accumulate cannot add results over more keys");
  constexpr Index kMultiple = 16;  // kSummedKeys, which kernels define
  require(!p.row_invariant || p.kv_offset % kMultiple == 0, "row_invariant needs a kv_offset that is a multiple of ",
          kMultiple, ", but it is ", p.kv_offset);
  require(options.compute == Compute::native || sizeof(T) == sizeof(float),
          "compute = bf16 is for float or 16-bit tensors, but these have ", sizeof(T), " bytes per element");
  return p;
}

/// Whether two positions of a writable tensor share an element because of a stride of 0.
template <int Rank>
bool repeats_elements(const Shape<Rank>& shape, const Shape<Rank>& strides) {
  for (std::size_t i = 0; i < Rank; ++i)
    if (shape[i] > 1 && strides[i] == 0 && product<Rank>(shape) > 0) return true;
  return false;
}

/// Checks the output `name` against the shape `want`; `dims` names its dimensions.
template <int Rank, class View>
void check_written(const View& t, const Shape<Rank>& want, const char* name, const char* dims) {
  require(t.shape() == want, name, " has shape ", t.shape(), ", expected ", want, " as ", dims,
          "; resize it before the call");
  require(!repeats_elements<Rank>(t.shape(), t.strides()), name, " of shape ", t.shape(),
          " has a stride of 0, so its elements share memory and cannot hold different results");
}

template <class T>
void check_output(const Problem& p, const DTypeView<T>& out) {
  check_written<4>(out, {p.batch, p.heads, p.q_len, p.v_dim}, "out", "(batch, heads, q_len, v_dim)");
}
/// Refuses to add to an output without its log-sum-exps.
inline void check_resumes_without_lse(const Problem& p, const Options& options) {
  require(!options.accumulate || p.sigmoid_bias,
          "accumulate needs the log-sum-exps of the existing out: attention_into(out, lse, ...)");
}
/// Refuses a caller's log-sum-exp if the call has none.
inline void check_has_lse(const Problem& p, const char* name) {
  require(!p.sigmoid_bias, "there is no log-sum-exp with a sigmoid; ", name, " must be omitted or empty");
}
template <class T>
void check_lse(const Problem& p, const TensorView<T, 3>& lse) {
  check_written<3>(lse, {p.batch, p.heads, p.q_len}, "lse", "(batch, heads, q_len)");
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
