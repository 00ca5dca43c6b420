// Attention written once more, in long double and plain loops over plain vectors. It shares nothing with the library,
// so that a mistake in a helper of the library (default scale, alignment, head grouping, strides) cannot hide in both.
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

  /// Rounds all numbers to values that T has, if T has 16 bits; every other scalar has what is drawn.
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

/// What a mod means. Empty functions mean: keep all, leave the score, no sink, leave the weight.
struct Meaning {
  std::function<bool(const Pair&)> keep = {};
  std::function<Real(Real, const Pair&)> score = {};
  std::function<Real(Index head)> sink = {};     ///< a logit that joins the denominator alone
  std::function<Real(const Pair&)> factor = {};  ///< what a weight is multiplied by after the softmax
  std::function<double(Index head)> gain = {};   ///< the most by which `score` enlarges an error; empty: 1
  Index passes = 1;  ///< over the output, at most: what a pass leaves there, and its log-sum-exp, is rounded
};

/// The numbers of a call, as the oracle defaults them.
struct Numbers {
  std::optional<double> scale;
  std::optional<Index> q_offset;
  std::optional<double> sigmoid_bias = {};  ///< weights are 1 / (1 + e^-(score + bias)), and there is no lse

  // Bottom-right: the last row stands at the last key.
  Index first_position(const Sizes& s) const { return q_offset ? *q_offset : s.kv_len - s.q_len; }
};

struct Truth {
  std::vector<Real> out, lse;
  std::vector<Real> softmax, weights;  ///< `weights` are what values are multiplied by
  std::vector<Real> sigmoid_rests;     ///< of sigmoids, 1 - softmax: near 1 a difference would lose its digits
  Real largest_score = 0;              ///< in magnitude, of the kept pairs, before and after the score mods
  Real largest_value = 0;              ///< in magnitude, times the largest factor
  Real largest_factor = 1;             ///< that a weight is multiplied by
  Real dot_condition = 0;  ///< largest scale * sum |q||k|: what the rounding errors of a score are proportional to
};

Truth oracle(const Inputs& in, const Meaning& mod = {}, const Numbers& numbers = {});

}  // namespace attn::test
