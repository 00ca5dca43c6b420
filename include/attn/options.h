// The numbers of a call. Types go in positional arguments, numbers go here.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "attn/detail/base/list.h"
#include "attn/isa.h"
#include "attn/parallel.h"

namespace attn {

/// How exactly the products of a call are formed.
enum class Compute {
  /// As exactly as the tensors are: those of bfloat16 on the matrix unit, if there is one, others as float or more.
  native,
  /// Query, key, value and weights may be rounded to bfloat16: several times faster where there is a matrix unit.
  bf16,
};

/// What a call may set, all optional: `attention(q, k, v, mods, {.scale = 0.25, .executor = serial()})`.
struct Options {
  /// Multiplies query * key. Default 1/sqrt(head_dim) (Vaswani et al. 2017, eq. 1).
  std::optional<double> scale = std::nullopt;

  /// Absolute position of query row 0. Default kv_len - q_len: the last query sees the last key ("bottom-right"), so
  /// that prefill, chunked prefill and decoding are the same call. 0 lets the first query see the first key
  /// ("top-left").
  std::optional<Index> q_offset = std::nullopt;

  /// The same for each batch element, or each sequence of a cache, instead of one for all: `.q_offsets = {0, 7}`, or
  /// any range of integers. Empty: q_offset holds. Results are those of a call for each. Some hundred bytes for each
  /// are taken off the heap.
  detail::Indices q_offsets = {};

  /// Who runs the tasks. Default all cores, or the calling thread alone where there is little to do. Results do not
  /// depend on it, bit for bit.
  Executor executor = {};

  /// Memory of the caller's for the call to work in, of any alignment and at least as many bytes as workspace_bytes()
  /// says; what it holds does not matter. Two calls at the same time need two. Default: the call allocates and frees
  /// its own. The naive path does not use it. (Where tokens are grouped, as by strided_sparse(), and out has 16 bits
  /// but query has not, some more is taken from the heap.)
  std::span<std::byte> workspace = {};

  /// `bf16` buys speed for tensors of float, or of half. Rounding values and weights errs by about 2^-8 of the largest
  /// value; rounding query and key moves scores by about 2^-8 of scale * sum |q||k|, much where scores are large. Sums
  /// and the softmax stay in float. Nothing is rounded without a matrix unit, as explain() tells, for single queries
  /// unless heads share keys and values that are bfloat16, and where results are not finite. The naive path does not
  /// use it.
  Compute compute = Compute::native;

  /// The instruction set to use, for tests and comparisons. Default the best there is, or what the environment variable
  /// ATTN_ISA names. One that is not available is refused.
  std::optional<Isa> isa = std::nullopt;
};

}  // namespace attn

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What ATTN_ISA names, where the call would use it and it is not available; else empty.
inline std::string_view ignored_isa(const Options& options) {
  return options.isa ? std::string_view() : std::string_view(isa_of_environment().ignored);
}

/// The instruction set that a call uses. @throws std::invalid_argument if the one asked for is not available.
inline Isa isa_of(const Options& options) { return options.isa ? checked_isa(*options.isa) : default_isa(); }

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
