// Recurrences token by token in long double, with error bounds for a correct program.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "oracle.h"

namespace fuzz {

inline Wide length_of(const std::vector<Wide>& row) {
  Wide sum = 0;
  for (const Wide x : row) sum += x * x;
  return std::sqrt(sum);
}

/// The features of a query or key. Errors are in units of the scalar's rounding error.
struct FeatureRow {
  std::vector<Wide> is, error;

  Wide length() const { return length_of(is); }
};

/// The state of one key-value head. Beside each sum it stores the sum of the magnitudes of its terms, to which rounding
/// errors are relative, and the error of the terms themselves, in roundings.
class StepwiseState {
 public:
  /// `tokens`: the largest number of tokens. Together with `features`, it bounds the error of a sum relative to the
  /// magnitudes of its terms, in any order of summation.
  StepwiseState(Index features, Index v_dim, Index tokens, Wide rounding, Wide least)
      : v_dim_(v_dim),
        roundings_(8 + 2 * std::sqrt(static_cast<Wide>(features + tokens))),
        rounding_(rounding),
        least_(least),
        sums_(at(features * v_dim)),
        keys_(at(features)),
        written_error_(at(v_dim)),
        vanished_(at(v_dim)) {}

  /// Sets the initial sums and key sums.
  template <class Sum, class Key>
  void begin(const Sum& sum, const Key& key) {
    for (Index f = 0; f < features(); ++f) {
      keys_[at(f)] = {key(f), std::abs(key(f)), 0};
      for (Index e = 0; e < v_dim_; ++e) of(f, e) = {sum(f, e), std::abs(sum(f, e)), 0};
    }
  }
  void clear() {
    for (auto* terms : {&sums_, &keys_}) std::fill(terms->begin(), terms->end(), Terms{});
    for (auto* numbers : {&written_error_, &vanished_}) std::fill(numbers->begin(), numbers->end(), Wide(0));
  }

  /// Decays by e^gate[f], or e^gate[0] for all features.
  void decay(const std::vector<Wide>& gate) {
    Wide most = 0;
    for (Index f = 0; f < features(); ++f) {
      const Wide g = gate[at(gate.size() == 1 ? 0 : f)], factor = std::exp(g);
      most = std::max(most, factor);
      for (Index e = 0; e < v_dim_; ++e) {
        Terms& t = of(f, e);
        // Up to 64 gates are summed before the exponential, whose error is that of their sum.
        t = {factor * t.is, factor * t.size, factor == 0 ? 0 : factor * (t.error + 64 * std::abs(g) * t.size)};
      }
    }
    for (Wide& x : written_error_) x *= most;
  }

  /// Decays, and adds b * (aᵀ * state), of the state before the decay.
  void decay_and_rewrite(const std::vector<Wide>& gate, const std::vector<Wide>& a, const std::vector<Wide>& b) {
    const Wide length_a = length_of(a), length_b = length_of(b);
    std::vector<Wide> read(at(v_dim_), 0), error(at(v_dim_), 0);
    for (Index e = 0; e < v_dim_; ++e) {
      Wide size = 0;
      for (Index f = 0; f < features(); ++f) {
        const Terms& t = of(f, e);
        read[at(e)] += a[at(f)] * t.is;
        size += std::abs(a[at(f)]) * (t.size + t.error / roundings_);
      }
      error[at(e)] = length_b * (length_a * written_error_[at(e)] + roundings_ * size);
    }
    decay(gate);
    for (Index e = 0; e < v_dim_; ++e) {
      written_error_[at(e)] += error[at(e)];
      for (Index f = 0; f < features(); ++f) of(f, e).add(b[at(f)] * read[at(e)], 0);
    }
  }

  /// Adds key * valueᵀ. `beta` of the delta rule, or null.
  void add(const FeatureRow& key, std::vector<Wide> value, const Wide* beta) {
    if (beta) compute_written(key, value, *beta);
    for (Index f = 0; f < features(); ++f) {
      const Wide k = key.is[at(f)], error = key.error[at(f)];
      keys_[at(f)].add(k, error);
      for (Index e = 0; e < v_dim_; ++e) of(f, e).add(k * value[at(e)], error * std::abs(value[at(e)]));
    }
    for (Index e = 0; e < v_dim_; ++e)
      if (const Wide size = key.length() * std::abs(value[at(e)]); !std::isnan(size)) vanished_[at(e)] += size;
  }

  struct Answer {
    std::vector<Wide> is, error;
  };
  /// Computes query * state, multiplied by the scale or divided by query * the sum of keys.
  Answer read(const FeatureRow& query, Wide scale, bool is_normalised) const {
    Answer a;
    Wide sum = 0, sum_error = 0, sum_size = 0;
    for (Index f = 0; is_normalised && f < features(); ++f) {
      const Terms& t = keys_[at(f)];
      sum += query.is[at(f)] * t.is;
      sum_size += std::abs(query.is[at(f)]) * t.size;
      sum_error += error_of(query, f, t);
    }
    const Wide length = query.length();
    for (Index e = 0; e < v_dim_; ++e) {
      Wide is = 0, error = length * (rounding_ * written_error_[at(e)] + least_ * vanished_[at(e)]);
      for (Index f = 0; f < features(); ++f) {
        is += query.is[at(f)] * of(f, e).is;
        error += error_of(query, f, of(f, e));
      }
      if (!is_normalised) {
        is *= scale, error *= std::abs(scale);
      } else if (sum_size == 0) {
        error = std::isnan(is) ? kInfinity : 0, is = 0;
      } else {
        is /= sum;
        // The denominator may cancel; if none of its digits is certain, any result is allowed.
        error = std::abs(sum) > 2 * sum_error ? 2 * (error + std::abs(is) * sum_error) / std::abs(sum) : kInfinity;
        if (std::isnan(sum))
          is = sum;
        else if (sum == 0)
          is = 0;
      }
      a.is.push_back(is);
      a.error.push_back(std::isnan(error) ? kInfinity : error);
      if (std::isnan(is)) a.error.back() = 0;
    }
    return a;
  }

  Wide sum(Index f, Index e) const { return of(f, e).is; }
  Wide sum_error(Index f, Index e) const {
    return rounding_ * (roundings_ * of(f, e).size + of(f, e).error + written_error_[at(e)]) +
           least_ * vanished_[at(e)];
  }
  Wide key(Index f) const { return keys_[at(f)].is; }
  Wide key_error(Index f) const { return rounding_ * (roundings_ * keys_[at(f)].size + keys_[at(f)].error); }
  Index features() const { return static_cast<Index>(keys_.size()); }

 private:
  static constexpr Wide kInfinity = std::numeric_limits<Wide>::infinity();

  struct Terms {
    Wide is = 0, size = 0, error = 0;

    void add(Wide x, Wide off) { is += x, size += std::abs(x), error += off; }
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  Terms& of(Index f, Index e) { return sums_[at(f * v_dim_ + e)]; }
  const Terms& of(Index f, Index e) const { return sums_[at(f * v_dim_ + e)]; }
  Wide error_of(const FeatureRow& query, Index f, const Terms& t) const {
    const Wide x = std::abs(query.is[at(f)]);
    return rounding_ * (x * (roundings_ * t.size + t.error) + query.error[at(f)] * t.size);
  }

  /// Replaces the value by beta * (value - state * key). The error of a written value propagates to all later ones,
  /// through products with I - beta * key * keyᵀ, which do not enlarge it for keys with small norms.
  void compute_written(const FeatureRow& key, std::vector<Wide>& value, Wide beta) {
    const Wide length = key.length(), grows = std::max<Wide>(1, std::abs(1 - beta * length * length));
    for (Index e = 0; e < v_dim_; ++e) {
      Wide seen = 0, size = std::abs(value[at(e)]);
      for (Index f = 0; f < features(); ++f) {
        const Terms& t = of(f, e);
        seen += key.is[at(f)] * t.is;
        size += std::abs(key.is[at(f)]) * (t.size + t.error / roundings_);
      }
      written_error_[at(e)] = grows * written_error_[at(e)] + roundings_ * std::abs(beta) * length * size;
      value[at(e)] = beta * (value[at(e)] - seen);
    }
  }

  Index v_dim_;
  Wide roundings_, rounding_, least_;
  std::vector<Terms> sums_, keys_;
  std::vector<Wide> written_error_;  ///< norm of the error of a column of sums, in roundings
  std::vector<Wide> vanished_;       ///< magnitudes without decays, which bound the loss by underflow
};

}  // namespace fuzz
