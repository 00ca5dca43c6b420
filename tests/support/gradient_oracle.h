// A reference implementation of attention's gradients, in long double and plain loops. It shares no code with the
// library.
#pragma once

#include "compare.h"
#include "oracle.h"

namespace attn::test {

struct GradientTruth {
  std::vector<Real> query, key, value;
  Real size_query = 0, size_key = 0,
       size_value = 0;  ///< largest sum of magnitudes, to which rounding errors are relative
};

/// The derivative of a modded score with respect to the score, from fourth-order differences. Not valid at a jump.
Real slope_of(const Meaning& mod, Real x, const Pair& p);

/// The gradients for grad_out (batch, heads, q_len, v_dim) and grad_lse (batch, heads, q_len), or an empty one. A pair
/// with weight w, which is z * w after dropout, and score gradient g contributes z * w * grad_out to the value's
/// gradient, and g * scale * slope times the key to the query's and times the query to the key's.
GradientTruth gradient_oracle(const Inputs& in, const std::vector<double>& grad_out,
                              const std::vector<double>& grad_lse = {}, const Meaning& mod = {},
                              const Numbers& numbers = {});

/// The gradients computed by one path.
template <class T>
struct ComputedGradients {
  std::vector<T> query, key, value;
};

/// Compares the naive path with the truth: a weight has the relative error of its score (see score_error()), and its
/// gradient twice that plus the rounding of sums over v_dim, kv_len and q_len terms.
template <class T>
void expect_naive_gradients_close(const GradientTruth& truth, const Truth& forward, const ComputedGradients<T>& naive,
                                  const Sizes& s) {
  const Real terms = static_cast<Real>(s.v_dim + s.kv_len + s.q_len * s.heads / s.kv_heads + s.head_dim);
  // The oracle's slopes are finite differences, accurate to about 1e-13.
  const Real allowed =
      epsilon<Wide<T>>() * (4 * score_error(forward, s) + terms + 16) + 1e-12L + 1.1L * Errors<T>::kNarrowEps;
  EXPECT_LE(largest_error(truth.query, naive.query), allowed * truth.size_query) << "naive grad_query";
  EXPECT_LE(largest_error(truth.key, naive.key), allowed * truth.size_key) << "naive grad_key";
  EXPECT_LE(largest_error(truth.value, naive.value), allowed * truth.size_value) << "naive grad_value";
}

/// Compares any other path with the truth: its error may be twice the naive path's, plus a few eps of the summed
/// magnitudes. Weights come from lse, so its rounding adds a few eps of the scores.
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

/// Compares any other path with the truth, where keys or values share a common component: the magnitudes of a sum's
/// terms say little then, since most of it cancels. The error may be twice the naive path's, or four times with 16
/// bits, plus the rounding of the stored gradient and a few eps of float.
template <class T>
void expect_gradients_as_exact(const GradientTruth& truth, const ComputedGradients<T>& naive,
                               const ComputedGradients<T>& got) {
  constexpr Real kFactor = sizeof(T) == 2 ? 4 : 2;
  const auto near = [&](const std::vector<Real>& want, const auto& by_definition, const auto& is, Real size,
                        const char* what) {
    Real most = 0;
    for (const Real x : want) most = std::max(most, std::abs(x));
    const Real eps = epsilon<Wide<T>>();
    EXPECT_LE(largest_error(want, is), kFactor * largest_error(want, by_definition) +
                                           (8 * eps + Errors<T>::kNarrowEps / 2) * most + 2 * eps * size)
        << what << "; the naive path's error is " << largest_error(want, by_definition) << ", the largest element is "
        << most;
  };
  near(truth.query, naive.query, got.query, truth.size_query, "grad_query");
  near(truth.key, naive.key, got.key, truth.size_key, "grad_key");
  near(truth.value, naive.value, got.value, truth.size_value, "grad_value");
}

}  // namespace attn::test
