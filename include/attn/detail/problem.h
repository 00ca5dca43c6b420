// Layer 2: from the arguments of a call to its checked sizes.
#pragma once

#include <cmath>
#include <string>

#include "attn/detail/check.h"
#include "attn/options.h"
#include "attn/tensor.h"

namespace attn::detail {

template <int Rank>
std::string text(const Shape<Rank>& shape) {
  std::string s = "(";
  for (std::size_t i = 0; i < Rank; ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + ")";
}

/// Checks query (batch, heads, q_len, head_dim), key (batch, kv_heads, kv_len, head_dim) and value (batch, kv_heads,
/// kv_len, v_dim) against each other and fills in the defaults of `options`. Every path uses this, so that all refuse
/// the same calls with the same words.
template <class T>
Problem make_problem(const TensorView<const T, 4>& q, const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                     const Options& options) {
  const auto sizes = [&](const char* what, Index a, const char* name_a, Index b, const char* name_b) {
    if (a == b) return;  // before any text is put together
    require(false, what, " differs: ", name_a, " has ", a, ", ", name_b, " has ", b, "; shapes: query ",
            text<4>(q.shape()), ", key ", text<4>(k.shape()), ", value ", text<4>(v.shape()),
            " as (batch, heads, len, dim)");
  };
  sizes("batch", q.dim(0), "query", k.dim(0), "key");
  sizes("batch", k.dim(0), "key", v.dim(0), "value");
  sizes("number of heads", k.dim(1), "key", v.dim(1), "value");
  sizes("kv_len", k.dim(2), "key", v.dim(2), "value");
  sizes("head_dim", q.dim(3), "query", k.dim(3), "key");
  require(q.dim(1) > 0 && k.dim(1) > 0, "there must be at least one head: query has ", q.dim(1), ", key has ",
          k.dim(1));
  require(q.dim(1) % k.dim(1) == 0, "heads (", q.dim(1), ") must be a multiple of kv_heads (", k.dim(1), ")");
  require(q.dim(3) > 0, "head_dim must be at least 1, it is ", q.dim(3));

  Problem p;
  p.batch = q.dim(0);
  p.heads = q.dim(1);
  p.kv_heads = k.dim(1);
  p.q_len = q.dim(2);
  p.kv_len = k.dim(2);
  p.head_dim = q.dim(3);
  p.v_dim = v.dim(3);
  // In double, as a caller would write it, unless the scalar is finer.
  using Fine = std::conditional_t<(sizeof(T) > sizeof(double)), T, double>;
  p.scale = options.scale ? static_cast<Fine>(*options.scale) : Fine(1) / std::sqrt(static_cast<Fine>(p.head_dim));
  p.q_offset = options.q_offset.value_or(p.kv_len - p.q_len);
  require(std::isfinite(p.scale), "scale must be finite, it is ", p.scale);
  return p;
}

inline void check_output(const Problem& p, const Shape<4>& out) {
  const Shape<4> want{p.batch, p.heads, p.q_len, p.v_dim};
  if (out == want) return;
  require(false, "out has shape ", text<4>(out), ", the result has ", text<4>(want),
          " as (batch, heads, q_len, v_dim)");
}

inline void check_lse(const Problem& p, const Shape<3>& lse) {
  const Shape<3> want{p.batch, p.heads, p.q_len};
  if (lse == want) return;
  require(false, "lse has shape ", text<3>(lse), ", the result has ", text<3>(want), " as (batch, heads, q_len)");
}

}  // namespace attn::detail
