// The gradients of attention once more, in long double and plain loops; shares nothing with the library.
#pragma once

#include "compare.h"
#include "oracle.h"

namespace attn::test {

struct GradientTruth {
  std::vector<Real> query, key, value;
  Real size_query = 0, size_key = 0,
       size_value = 0;  ///< largest sum of magnitudes: what rounding errors are relative to
};

/// What a modded score grows by with the score, by differences of fourth order. Where a score jumps, it has none.
inline Real slope_of(const Meaning& mod, Real x, const Pair& p) {
  if (!mod.score) return 1;
  const Real h = 1e-4L * std::max<Real>(1, std::abs(x));
  const auto f = [&](Real by) { return mod.score(x + by * h, p); };
  return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * h);
}

/// grad_out (batch, heads, q_len, v_dim), grad_lse (batch, heads, q_len) or empty. For each pair of weight w, z * w
/// after dropout, with the gradient g of its score: value gets z * w * grad_out, query and key get g * scale * slope
/// times each other.
inline GradientTruth gradient_oracle(const Inputs& in, const std::vector<double>& grad_out,
                                     const std::vector<double>& grad_lse = {}, const Meaning& mod = {},
                                     const Numbers& numbers = {}) {
  const Sizes& s = in.sizes;
  const Truth forward = oracle(in, mod, numbers);
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  GradientTruth t;
  t.query.assign(in.q.size(), 0), t.key.assign(in.k.size(), 0), t.value.assign(in.v.size(), 0);
  std::vector<Real> key_size(in.k.size(), 0), value_size(in.v.size(), 0);
  const auto at = [](const auto& x, Index i) -> decltype(auto) { return x[static_cast<std::size_t>(i)]; };
  const auto to = [](auto& x, Index i) -> Real& { return x[static_cast<std::size_t>(i)]; };
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h) {
      const Index head = b * s.heads + h, kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (Index i = 0; i < s.q_len; ++i) {
        const Index row = head * s.q_len + i;
        const auto product = [&](Index j) {  // grad_out * value
          Real sum = 0;
          for (Index c = 0; c < s.v_dim; ++c)
            sum += Real(at(grad_out, row * s.v_dim + c)) * Real(at(in.v, (kv_head * s.kv_len + j) * s.v_dim + c));
          return sum;
        };
        Real delta = 0, delta_size = 0;
        for (Index j = 0; j < s.kv_len; ++j)
          if (const Real zw = at(forward.weights, row * s.kv_len + j); zw != 0)
            delta += zw * product(j), delta_size += zw * std::abs(product(j));
        if (!grad_lse.empty()) delta -= at(grad_lse, row);
        std::vector<Real> query_size(static_cast<std::size_t>(s.head_dim), 0);
        for (Index j = 0; j < s.kv_len; ++j) {
          const Real w = at(forward.softmax, row * s.kv_len + j), zw = at(forward.weights, row * s.kv_len + j);
          if (w == 0) continue;
          Real dot = 0;
          const Index key = (kv_head * s.kv_len + j) * s.head_dim, value = (kv_head * s.kv_len + j) * s.v_dim;
          for (Index d = 0; d < s.head_dim; ++d) dot += Real(at(in.q, row * s.head_dim + d)) * Real(at(in.k, key + d));
          const Real slope = scale * slope_of(mod, scale * dot, {b, h, i, first + i, j});
          const Real dp = product(j), g = (zw * dp - w * delta) * slope,
                     g_size = (zw * std::abs(dp) + w * (std::abs(delta) + delta_size)) * std::abs(slope);
          for (Index c = 0; c < s.v_dim; ++c) {
            to(t.value, value + c) += zw * Real(at(grad_out, row * s.v_dim + c));
            to(value_size, value + c) += zw * std::abs(Real(at(grad_out, row * s.v_dim + c)));
          }
          for (Index d = 0; d < s.head_dim; ++d) {
            const Real q = at(in.q, row * s.head_dim + d), k = at(in.k, key + d);
            to(t.query, row * s.head_dim + d) += g * k;
            to(query_size, d) += g_size * std::abs(k);
            to(t.key, key + d) += g * q;
            to(key_size, key + d) += g_size * std::abs(q);
          }
        }
        for (Real size : query_size) t.size_query = std::max(t.size_query, size);
      }
    }
  for (Real size : key_size) t.size_key = std::max(t.size_key, size);
  for (Real size : value_size) t.size_value = std::max(t.size_value, size);
  return t;
}

/// What one path computed.
template <class T>
struct ComputedGradients {
  std::vector<T> query, key, value;
};

/// The naive path against the truth: a weight errs by what its score does (see score_error()), a gradient of it by
/// twice that and by what sums of v_dim, kv_len and q_len terms lose.
template <class T>
void expect_naive_gradients_close(const GradientTruth& truth, const Truth& forward, const ComputedGradients<T>& naive,
                                  const Sizes& s) {
  const Real terms = static_cast<Real>(s.v_dim + s.kv_len + s.q_len * s.heads / s.kv_heads + s.head_dim);
  // Slopes of the oracle are differences, good to 1e-13 or so.
  const Real allowed =
      epsilon<Wide<T>>() * (4 * score_error(forward, s) + terms + 16) + 1e-12L + 1.1L * Errors<T>::kNarrowEps;
  EXPECT_LE(largest_error(truth.query, naive.query), allowed * truth.size_query) << "naive grad_query";
  EXPECT_LE(largest_error(truth.key, naive.key), allowed * truth.size_key) << "naive grad_key";
  EXPECT_LE(largest_error(truth.value, naive.value), allowed * truth.size_value) << "naive grad_value";
}

/// Allowed are twice the naive path's error and a few eps of the summed magnitudes. Weights come from lse, so its
/// rounding adds a few eps of the scores.
template <class T>
void expect_gradients_close(const GradientTruth& truth, const Truth& forward, const ComputedGradients<T>& naive,
                            const ComputedGradients<T>& got) {
  const Real lse = forward.largest_score + std::log(static_cast<Real>(forward.weights.size() + 2));
  const Real eps = epsilon<Wide<T>>() * (8 + 2 * lse) + 1e-12L + 2 * Errors<T>::kNarrowEps;
  const auto near = [&](const auto& want, const auto& by_definition, const auto& is, Real size, const char* what) {
    EXPECT_LE(largest_error(want, is), 2 * largest_error(want, by_definition) + eps * size) << what;
  };
  near(truth.query, naive.query, got.query, truth.size_query, "grad_query");
  near(truth.key, naive.key, got.key, truth.size_key, "grad_key");
  near(truth.value, naive.value, got.value, truth.size_value, "grad_value");
}

}  // namespace attn::test
