// Allowed differences between results and the truth, with their justification.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include "attn/isa.h"
#include "oracle.h"

namespace attn::test {

/// The largest difference; infinite if one side is NaN or infinite and the other differs.
template <class T>
Real largest_error(const std::vector<Real>& truth, const std::vector<T>& got) {
  if (truth.size() != got.size()) return std::numeric_limits<Real>::infinity();
  Real error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Real a = truth[i], b = static_cast<Real>(got[i]);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const Real difference = std::abs(a - b);
    error = std::max(error, std::isfinite(difference) ? difference : std::numeric_limits<Real>::infinity());
  }
  return error;
}

/// The scalar of log-sum-exps, in which the library computes if tensors have the scalar T.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

/// The results of one path, as plain row-major vectors.
template <class T>
struct Computed {
  std::vector<T> out;
  std::vector<Wide<T>> lse;
};

/// The distance from 1 to the next representable value. Eigen 3.4.0 returns 2^-13 for its half.
template <class T>
Real epsilon() {
  if (std::is_same_v<T, Eigen::half>) return 0x1p-10L;
  if (std::is_same_v<T, Eigen::bfloat16>) return 0x1p-7L;
  return static_cast<Real>(std::numeric_limits<T>::epsilon());
}

template <class T>
struct Errors {
  static inline const Real kEps = epsilon<Wide<T>>();
  /// Rounding weights and results to 16 bits has an error of half an eps each; small weights underflow in binary16.
  static inline const Real kNarrowEps = sizeof(T) == 2 ? epsilon<T>() : 0;
  Real out, lse;

  Errors(const Truth& truth, const Computed<T>& got)
      : out(largest_error(truth.out, got.out)), lse(largest_error(truth.lse, got.lse)) {}
};

/// Compares the naive path with the truth: its only errors are rounding errors, which are bounded in the worst case. A
/// dot product of d terms has an error of at most d eps sum|q||k|, a mod a few eps of the score. The relative error of
/// a weight is twice that of a score (from its exponential and from the sum of exponentials), and the sum over keys
/// adds kv_len eps of the largest value.
inline Real score_error(const Truth& truth, const Sizes& s) {
  return static_cast<Real>(s.head_dim + 2) * truth.dot_condition + 8 * truth.largest_score + 4;
}
template <class T>
void expect_naive_close(const Truth& truth, const Computed<T>& naive, const Sizes& s) {
  const Errors<T> e(truth, naive);
  const Real score = score_error(truth, s);
  EXPECT_LE(e.out, (Errors<T>::kEps * (2 * score + static_cast<Real>(s.kv_len) + 4) + 1.1L * Errors<T>::kNarrowEps) *
                       truth.largest_value)
      << "naive out";
  EXPECT_LE(e.lse, Errors<T>::kEps * (score + static_cast<Real>(s.kv_len) + 4)) << "naive lse";
}

template <class T>
void expect_weights_close(const Truth& truth, const std::vector<T>& weights, const Sizes& s) {
  EXPECT_LE(largest_error(truth.weights, weights),
            (Errors<T>::kEps * (2 * score_error(truth, s) + static_cast<Real>(s.kv_len) + 4) + Errors<T>::kNarrowEps) *
                truth.largest_factor)
      << "weights";
}

/// Compares any other path with the truth. Its error may be at most twice the naive path's, plus a floor for cases in
/// which the naive path happens to be exact (one key, for example). The floor is counted in roundings of the largest
/// score and value; for the log-sum-exp, which can be log(kv_len) away from the scores, also in roundings of itself.
/// Over all sweeps and instruction sets, error - 2 * naive was at most 0.8 of these units in out, and 3.1 in lse, in
/// which the maximum and the logarithm are rounded as well. It was at most 1.3 in long double, in which the oracle
/// rounds as well, and 3.8 with dozens of passes over groups of tokens. About twice that is allowed. With 16 bits, one
/// rounding of the largest value is added.
constexpr Real kOutFloor = 3, kLseFloor = 6;

/// Weights computed by bf16 products have a relative error of 1.03e-4 before they are rounded to bf16, and so do their
/// sums.
template <class T>
Real lse_error(attn::Isa isa) {
  return isa >= attn::Isa::avx512_bf16 && std::is_same_v<T, Eigen::bfloat16> ? 1.1e-4L : 0;
}

/// `lse_error`: additional error allowed in the log-sum-exp.
template <class T>
void expect_close(const Truth& truth, const Computed<T>& naive, const Computed<T>& got, Real lse_error = 0) {
  const Errors<T> reference(truth, naive), e(truth, got);
  const Real unit = Errors<T>::kEps * (1 + truth.largest_score);
  EXPECT_LE(e.out, 2 * reference.out + (kOutFloor * unit + Errors<T>::kNarrowEps / 2) * truth.largest_value)
      << "out; the naive path's error is " << reference.out;
  Real largest_lse = 0;
  for (const Real lse : truth.lse)
    if (std::isfinite(lse)) largest_lse = std::max(largest_lse, std::abs(lse));
  const Real lse_unit = Errors<T>::kEps * (1 + std::max(truth.largest_score, largest_lse));
  EXPECT_LE(e.lse, 2 * reference.lse + kLseFloor * lse_unit + lse_error)
      << "lse; the naive path's error is " << reference.lse;
}

/// Whether both have the same bits, NaN included. Long double has padding, so its values are compared instead.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Real x = static_cast<Real>(a[i]), y = static_cast<Real>(b[i]);
    if (std::signbit(x) != std::signbit(y) || (x != y && !(std::isnan(x) && std::isnan(y)))) return false;
  }
  return true;
}

/// Whether the bytes of both are the same.
template <class T>
bool same_bits(const T* a, const T* b, Index count) {
  return count == 0 || std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}

template <class T, int Rank>
bool same_bits(const Tensor<T, Rank>& a, const Tensor<T, Rank>& b) {
  return a.shape() == b.shape() && same_bits(a.data(), b.data(), a.size());
}

template <class T>
bool same_bits(const Computed<T>& a, const Computed<T>& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}

}  // namespace attn::test
