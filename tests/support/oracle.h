// A reference implementation of attention, in long double and plain loops over plain vectors. It shares no code with
// the library, so that a mistake in a helper of the library (default scale, alignment, head grouping, strides) cannot
// affect both.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <vector>

#include "random.h"

namespace attn::test {

using Real = long double;

struct Sizes {
  Index batch = 1;
  Index heads = 1;
  Index kv_heads = 1;
  Index q_len = 1;
  Index kv_len = 1;
  Index head_dim = 1;
  Index v_dim = 1;
};

inline std::ostream& operator<<(std::ostream& os, const Sizes& s) {
  return os << "batch " << s.batch << " heads " << s.heads << "/" << s.kv_heads << " q_len " << s.q_len << " kv_len "
            << s.kv_len << " head_dim " << s.head_dim << " v_dim " << s.v_dim;
}

/// Query, key and value, row-major over (batch, heads or kv_heads, len, dim).
struct Inputs {
  Sizes sizes;
  std::vector<double> q, k, v;

  Inputs(const Sizes& s, Random& random)
      : sizes(s),
        q(random.values(s.batch * s.heads * s.q_len * s.head_dim)),
        k(random.values(s.batch * s.kv_heads * s.kv_len * s.head_dim)),
        v(random.values(s.batch * s.kv_heads * s.kv_len * s.v_dim)) {}
  Inputs(const Sizes& s, std::vector<double> q_given, std::vector<double> k_given, std::vector<double> v_given)
      : sizes(s), q(std::move(q_given)), k(std::move(k_given)), v(std::move(v_given)) {}

  /// Rounds all values to T if T has 16 bits; every other scalar represents them exactly.
  template <class T>
  void round_to() {
    if constexpr (sizeof(T) == 2)
      for (std::vector<double>* values : {&q, &k, &v})
        for (double& x : *values) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
  }
};

/// One pair as the oracle sees it: `row` counts queries from 0, `q` is the absolute position.
struct Pair {
  Index batch, head, row, q, kv;
};

/// The meaning of a mod. Empty functions mean: keep all pairs, leave the score, no sink, leave the weight.
struct Meaning {
  std::function<bool(const Pair&)> keep = {};
  std::function<Real(Real, const Pair&)> score = {};
  std::function<Real(Index head)> sink = {};                 ///< a logit that is added to the denominator only
  std::function<Real(const Pair&)> factor = {};              ///< multiplies a weight after the softmax
  std::function<Real(Real, const Pair&)> weight = {};        ///< replaces a weight after the softmax
  std::function<Real(Real, const Pair&)> weight_slope = {};  ///< derivative of `weight`
  std::function<double(Index head)> gain = {};  ///< the largest factor by which `score` amplifies an error; empty: 1
  Index passes = 1;  ///< largest number of passes over the output; each pass rounds the result and the log-sum-exp
};

/// The parameters of a call, with the oracle's defaults.
struct Numbers {
  std::optional<double> scale;
  std::optional<Index> q_offset;
  std::optional<double> sigmoid_bias = {};  ///< weights are 1 / (1 + e^-(score + bias)), and there is no lse

  // Bottom-right alignment: the last query is at the position of the last key.
  Index first_position(const Sizes& s) const { return q_offset ? *q_offset : s.kv_len - s.q_len; }
};

struct Truth {
  std::vector<Real> out, lse;
  std::vector<Real> softmax, weights;  ///< `weights` multiply the values
  std::vector<Real> slopes;            ///< derivatives of `weights` with respect to `softmax`, times `softmax`
  std::vector<Real> sigmoid_rests;     ///< 1 - softmax for sigmoids, computed without cancellation
  Real largest_score = 0;              ///< in magnitude, over kept pairs, before and after the score mods
  Real largest_value = 0;              ///< in magnitude, times the largest factor
  Real largest_factor = 1;             ///< largest factor on a weight, or derivative of one
  Real dot_condition = 0;  ///< largest scale * sum |q||k|, to which a score's rounding errors are proportional
};

Truth oracle(const Inputs& in, const Meaning& mod = {}, const Numbers& numbers = {});

}  // namespace attn::test
