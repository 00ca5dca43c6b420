// Reference implementations of linear attention, gates and the delta rule in long double: over the matrix of all pairs,
// or step by step as in the paper. They share no code with the library.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "random.h"

namespace attn::test {

using LongReal = long double;

/// Inputs for every form, row-major (batch, heads, len, elements per token).
struct Recurrent {
  Index batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim;
  std::vector<double> q, k, v, token_gate, feature_gate, beta, a, b_vector;

  Recurrent(Random& random, Index b, Index h, Index kh, Index n, Index m, Index d, Index e, double strength = 1)
      : batch(b), heads(h), kv_heads(kh), q_len(n), kv_len(m), head_dim(d), v_dim(e) {
    q = random.values(b * h * n * d, 1.5);
    k = random.values(b * kh * m * d, 1.5);
    v = random.values(b * kh * m * e);
    for (Index i = 0; i < b * kh * m; ++i) {
      // Keys have small norms, as the delta rule requires.
      for (Index j = 0; j < d; ++j)
        k[at(i * d + j)] = static_cast<float>(k[at(i * d + j)] / std::sqrt(static_cast<double>(d)));
      token_gate.push_back(-strength * random.uniform(0, 1));
      beta.push_back(random.uniform(0, 1));
      for (Index j = 0; j < d; ++j) feature_gate.push_back(-strength * random.uniform(0, 1));
    }
    // b is roughly opposite to a, so that what is read is mostly removed, and states stay bounded.
    Random own(static_cast<std::uint64_t>(m * d + 1));
    for (Index i = 0; i < b * kh * m * d; ++i) {
      const double root = std::sqrt(static_cast<double>(d));
      a.push_back(static_cast<float>(own.uniform(-1.5, 1.5) / root));
      b_vector.push_back(static_cast<float>(-0.7 * a.back() + own.uniform(-0.2, 0.2) / root));
    }
  }

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Index kv_head(Index b, Index h) const { return b * kv_heads + h / (heads / kv_heads); }
  Index query(Index b, Index h, Index i) const { return (b * heads + h) * q_len + i; }
  Index key(Index b, Index h, Index j) const { return kv_head(b, h) * kv_len + j; }
};

/// The outputs, and the largest sum of the magnitudes of an output's terms, to which rounding errors are relative.
struct RecurrentTruth {
  std::vector<LongReal> out;
  LongReal largest = 0;
};

/// Whether query row i sees key j of batch element b.
using Sees = std::function<bool(Index b, Index i, Index j)>;

/// out_i = sum over its visible keys of weight * value, divided by the sum of weights if `normalised`.
inline RecurrentTruth all_pairs(const Recurrent& in, const Sees& sees, bool normalised,
                                const std::function<LongReal(Index b, Index h, Index i, Index j)>& weight) {
  RecurrentTruth truth;
  for (Index b = 0; b < in.batch; ++b)
    for (Index h = 0; h < in.heads; ++h)
      for (Index i = 0; i < in.q_len; ++i) {
        std::vector<LongReal> sum(Recurrent::at(in.v_dim)), size(sum.size());
        LongReal all = 0;
        for (Index j = 0; j < in.kv_len; ++j) {
          if (!sees(b, i, j)) continue;
          const LongReal w = weight(b, h, i, j);
          all += w;
          for (Index e = 0; e < in.v_dim; ++e) {
            const LongReal x = w * in.v[Recurrent::at(in.key(b, h, j) * in.v_dim + e)];
            sum[Recurrent::at(e)] += x;
            size[Recurrent::at(e)] += std::abs(x);
          }
        }
        for (std::size_t e = 0; e < sum.size(); ++e) {
          const LongReal factor = !normalised ? 1 : all == 0 ? 0 : 1 / all;
          truth.out.push_back(sum[e] * factor);
          truth.largest = std::max(truth.largest, size[e] * std::abs(factor));
        }
      }
  return truth;
}

/// Maps all elements of a row to features.
using Features = std::function<std::vector<LongReal>(const std::vector<LongReal>&)>;
inline Features each_number(const std::function<LongReal(LongReal)>& f) {
  return [f](std::vector<LongReal> row) {
    for (LongReal& x : row) x = f(x);
    return row;
  };
}

inline std::vector<LongReal> row_of(const std::vector<double>& numbers, Index row, Index dim) {
  std::vector<LongReal> of;
  for (Index d = 0; d < dim; ++d) of.push_back(numbers[Recurrent::at(row * dim + d)]);
  return of;
}

inline RecurrentTruth linear_oracle(const Recurrent& in, const Sees& sees, const Features& f) {
  return all_pairs(in, sees, true, [&](Index b, Index h, Index i, Index j) {
    const auto q = f(row_of(in.q, in.query(b, h, i), in.head_dim)), k = f(row_of(in.k, in.key(b, h, j), in.head_dim));
    LongReal sum = 0;
    for (std::size_t d = 0; d < q.size(); ++d) sum += q[d] * k[d];
    return sum;
  });
}

/// weight_ij = scale * sum over features of q * k * e^(sum of the gates of j + 1 .. i), with a gate per token, or per
/// token and feature.
inline RecurrentTruth gated_oracle(const Recurrent& in, const Sees& sees, const std::vector<double>& gates,
                                   LongReal scale) {
  const Index per_token = gates.size() == in.token_gate.size() ? 1 : in.head_dim;
  return all_pairs(in, sees, false, [&](Index b, Index h, Index i, Index j) {
    LongReal sum = 0;
    for (Index d = 0; d < in.head_dim; ++d) {
      LongReal gate = 0;
      for (Index t = j + 1; t <= i; ++t)
        gate += gates[Recurrent::at(in.key(b, h, t) * per_token + (per_token == 1 ? 0 : d))];
      sum += scale * in.q[Recurrent::at(in.query(b, h, i) * in.head_dim + d)] *
             in.k[Recurrent::at(in.key(b, h, j) * in.head_dim + d)] * std::exp(gate);
    }
    return sum;
  });
}

/// The steps of delta rules with a state S (v_dim, head_dim). change(row, row of v's element, token of keys) advances a
/// row of S; then out = scale * S q. A token for which `first` is true starts from a zero state.
inline RecurrentTruth by_steps(const Recurrent& in, LongReal scale, const std::function<bool(Index)>& first,
                               const std::function<void(LongReal* row, LongReal v, Index key)>& change) {
  RecurrentTruth truth;
  const auto at = [](const std::vector<double>& x, Index i) { return LongReal(x[Recurrent::at(i)]); };
  for (Index b = 0; b < in.batch; ++b)
    for (Index h = 0; h < in.heads; ++h) {
      std::vector<LongReal> s(Recurrent::at(in.v_dim * in.head_dim));
      for (Index t = 0; t < in.q_len; ++t) {
        if (first(t)) s.assign(s.size(), 0);
        const Index key = in.key(b, h, t);
        for (Index e = 0; e < in.v_dim; ++e) {
          LongReal* const row = s.data() + e * in.head_dim;
          LongReal out = 0, size = 0;
          change(row, at(in.v, key * in.v_dim + e), key);
          for (Index d = 0; d < in.head_dim; ++d) {
            const LongReal x = scale * row[d] * at(in.q, in.query(b, h, t) * in.head_dim + d);
            out += x;
            size += std::abs(x);
          }
          truth.out.push_back(out);
          truth.largest = std::max(truth.largest, size);
        }
      }
    }
  return truth;
}

/// S <- S diag(g) (I - beta k kᵀ) + beta v kᵀ (Yang, Kautz & Hatamizadeh; Kimi Team), with a gate per token, or per
/// token and feature.
inline RecurrentTruth delta_oracle(const Recurrent& in, LongReal scale, const std::function<bool(Index)>& first,
                                   const std::vector<double>& gates) {
  const Index per_token = gates.size() == in.token_gate.size() ? 1 : in.head_dim;
  return by_steps(in, scale, first, [&, per_token](LongReal* row, LongReal v, Index key) {
    const LongReal beta = in.beta[Recurrent::at(key)];
    LongReal along = 0;
    for (Index d = 0; d < in.head_dim; ++d) {
      row[d] *= std::exp(LongReal(gates[Recurrent::at(key * per_token + (per_token == 1 ? 0 : d))]));
      along += row[d] * LongReal(in.k[Recurrent::at(key * in.head_dim + d)]);
    }
    for (Index d = 0; d < in.head_dim; ++d)
      row[d] += beta * (v - along) * LongReal(in.k[Recurrent::at(key * in.head_dim + d)]);
  });
}

/// S <- S (diag(g) + a bᵀ) + v kᵀ (Peng et al. 2025, RWKV-7, with their S, a and b).
inline RecurrentTruth dplr_oracle(const Recurrent& in, LongReal scale, const std::function<bool(Index)>& first,
                                  const std::vector<double>& gates) {
  const Index per_token = gates.size() == in.token_gate.size() ? 1 : in.head_dim;
  return by_steps(in, scale, first, [&, per_token](LongReal* row, LongReal v, Index key) {
    LongReal read = 0;
    for (Index d = 0; d < in.head_dim; ++d) read += row[d] * LongReal(in.a[Recurrent::at(key * in.head_dim + d)]);
    for (Index d = 0; d < in.head_dim; ++d) {
      const std::size_t at = Recurrent::at(key * in.head_dim + d);
      row[d] = row[d] * std::exp(LongReal(gates[Recurrent::at(key * per_token + (per_token == 1 ? 0 : d))])) +
               read * LongReal(in.b_vector[at]) + v * LongReal(in.k[at]);
    }
  });
}

}  // namespace attn::test
