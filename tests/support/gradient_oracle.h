// The gradients of attention written once more, in long double and plain loops. Shares nothing with the library.
#pragma once

#include "compare.h"
#include "oracle.h"

namespace attn::test {

struct GradientTruth {
  std::vector<Real> query, key, value;
  Real size_query = 0, size_key = 0,
       size_value = 0;  ///< largest sum of magnitudes: what rounding errors are relative to
};

/// What a modded score grows by with the score, from differences of fourth order. Where a score jumps, it has no slope.
Real slope_of(const Meaning& mod, Real x, const Pair& p);

/// The gradients, given grad_out (batch, heads, q_len, v_dim) and grad_lse (batch, heads, q_len), or an empty one. A
/// pair of weight w, which is z * w after dropout, and with the gradient g of its score gives z * w * grad_out to the
/// value, and g * scale * slope times each other to query and key.
GradientTruth gradient_oracle(const Inputs& in, const std::vector<double>& grad_out,
                              const std::vector<double>& grad_lse = {}, const Meaning& mod = {},
                              const Numbers& numbers = {});

/// What one path computed.
template <class T>
struct ComputedGradients {
  std::vector<T> query, key, value;
};

/// Compares the naive path with the truth: a weight errs by what its score does (see score_error()), and its gradient
/// by twice that and by what sums of v_dim, kv_len and q_len terms lose.
template <class T>
void expect_naive_gradients_close(const GradientTruth& truth, const Truth& forward, const ComputedGradients<T>& naive,
                                  const Sizes& s) {
  const Real terms = static_cast<Real>(s.v_dim + s.kv_len + s.q_len * s.heads / s.kv_heads + s.head_dim);
  // The oracle's slopes are differences, which are good to 1e-13 or so.
  const Real allowed =
      epsilon<Wide<T>>() * (4 * score_error(forward, s) + terms + 16) + 1e-12L + 1.1L * Errors<T>::kNarrowEps;
  EXPECT_LE(largest_error(truth.query, naive.query), allowed * truth.size_query) << "naive grad_query";
  EXPECT_LE(largest_error(truth.key, naive.key), allowed * truth.size_key) << "naive grad_key";
  EXPECT_LE(largest_error(truth.value, naive.value), allowed * truth.size_value) << "naive grad_value";
}

/// Compares any other path with the truth: it may err twice as much as the naive path, plus a few eps of the summed
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

/// Compares any other path with the truth, where keys or values have a part in common: what a sum is made of says
/// little then, since most of it cancels. The path may err twice as much as the naive one, or four times with 16 bits,
/// plus what storing a gradient takes, and a few eps of float.
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
        << what << "; naive errs by " << largest_error(want, by_definition) << ", the largest is " << most;
  };
  near(truth.query, naive.query, got.query, truth.size_query, "grad_query");
  near(truth.key, naive.key, got.key, truth.size_key, "grad_key");
  near(truth.value, naive.value, got.value, truth.size_value, "grad_value");
}

}  // namespace attn::test
