// Attention once more, in long double and plain loops over plain vectors. It shares nothing with the library, so that a
// mistake in a helper of the library (default scale, alignment, head grouping, strides) cannot hide in both.
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

  /// Values that T has, for T of 16 bits; all scalars have those that are drawn otherwise.
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

/// What a mod means; empty functions mean "keep all", "leave the score", "no sink" and "leave the
/// weight".
struct Meaning {
  std::function<bool(const Pair&)> keep;
  std::function<Real(Real, const Pair&)> score;
  std::function<Real(Index head)> sink = {};     ///< a logit that joins the denominator alone
  std::function<Real(const Pair&)> factor = {};  ///< of weights, after the softmax
};

/// The numbers of a call, as the oracle defaults them.
struct Numbers {
  std::optional<double> scale;
  std::optional<Index> q_offset;

  // Bottom-right: the last row stands at the last key.
  Index first_position(const Sizes& s) const { return q_offset ? *q_offset : s.kv_len - s.q_len; }
};

struct Truth {
  std::vector<Real> out, lse;
  std::vector<Real> softmax, weights;  ///< the second are what values are multiplied by
  Real largest_score = 0;              ///< in magnitude, of the kept pairs, before and after the score mods
  Real largest_value = 0;              ///< in magnitude, times the largest factor
  Real largest_factor = 1;             ///< of weights
  Real dot_condition = 0;  ///< largest scale * sum |q||k|: what the rounding errors of a score are proportional to
};

inline Truth oracle(const Inputs& in, const Meaning& mod = {}, const Numbers& numbers = {}) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  const Sizes& s = in.sizes;
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  const auto at = [](const std::vector<double>& x, Index i) { return Real(x[static_cast<std::size_t>(i)]); };

  Truth t;
  for (double x : in.v) t.largest_value = std::max(t.largest_value, std::abs(Real(x)));
  std::vector<Real> row(static_cast<std::size_t>(s.kv_len));
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h) {
      const Index query_head = b * s.heads + h;
      const Index kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (Index i = 0; i < s.q_len; ++i) {
        const Real sink = mod.sink ? mod.sink(h) : -kInf;
        Real max = sink;
        for (Index j = 0; j < s.kv_len; ++j) {
          Real dot = 0, size = 0;
          for (Index d = 0; d < s.head_dim; ++d) {
            const Real product = at(in.q, (query_head * s.q_len + i) * s.head_dim + d) *
                                 at(in.k, (kv_head * s.kv_len + j) * s.head_dim + d);
            dot += product;
            size += std::abs(product);
          }
          const Pair p{b, h, i, first + i, j};
          Real x = -kInf;
          if (!mod.keep || mod.keep(p)) x = mod.score ? mod.score(scale * dot, p) : scale * dot;
          row[static_cast<std::size_t>(j)] = x;
          if (x == -kInf) continue;
          max = std::max(max, x);
          t.largest_score = std::max({t.largest_score, std::abs(x), std::abs(scale * dot)});
          t.dot_condition = std::max(t.dot_condition, std::abs(scale) * size);
        }
        Real sum = sink == -kInf ? 0 : std::exp(sink - max);
        for (Real& x : row) sum += x = x == -kInf ? 0 : std::exp(x - max);
        t.lse.push_back(sum == 0 ? -kInf : max + std::log(sum));
        for (Index j = 0; j < s.kv_len; ++j) {
          Real& x = row[static_cast<std::size_t>(j)];
          t.softmax.push_back(x = sum == 0 ? 0 : x / sum);
          const Real factor = mod.factor ? mod.factor({b, h, i, first + i, j}) : 1;
          t.largest_factor = std::max(t.largest_factor, factor);
          t.weights.push_back(x *= factor);
        }
        for (Index e = 0; e < s.v_dim; ++e) {
          Real y = 0;
          for (Index j = 0; j < s.kv_len; ++j)
            if (row[static_cast<std::size_t>(j)] != 0)
              y += row[static_cast<std::size_t>(j)] * at(in.v, (kv_head * s.kv_len + j) * s.v_dim + e);
          t.out.push_back(y);
        }
      }
    }
  t.largest_value *= t.largest_factor;
  return t;
}

}  // namespace attn::test
