// Correctness checks that a contestant must pass before it is timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "contestants.h"

namespace bench {

/// Thrown if a result is wrong. The message names the contestant, the workload and the difference.
struct Unequal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the largest absolute difference; infinity if there is a NaN, so that it exceeds every bound.
template <class A, class B>
double max_difference(const attn::Tensor<A, 4>& a, const attn::Tensor<B, 4>& b) {
  double worst = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const auto d = static_cast<double>(std::abs(a.data()[i] - b.data()[i]));
    worst = d >= 0 ? std::max(worst, d) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

template <class T>
double max_magnitude(const attn::Tensor<T, 4>& t) {
  double largest = 0;
  for (Index i = 0; i < t.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(t.data()[i])));
  return largest;
}

/// @throws Unequal unless error <= allowed.
inline void expect_within(const std::string& who, const Workload& work, const char* against, double error,
                          double allowed) {
  if (error <= allowed) return;
  std::ostringstream message;
  message << who << " is wrong on " << label(work) << ": differs from " << against << " by " << error << ", allowed "
          << allowed;
  throw Unequal(message.str());
}

/// Checks the contract's accuracy rule on smaller versions of `work` (same mods and head_dim, lengths around common
/// tile sizes): against the definition in the next wider type, an error may be at most twice that of the first
/// contestant plus a few eps of the largest value.
template <class T>
void check_against_oracle(const Workload& work, const attn::Options& options) {
  constexpr double kFewEps = 4;
  for (const Index len : {1, 17, 64, 129, 300}) {
    Workload small = work;
    small.batch = std::min<Index>(work.batch, 2);
    small.q_len = std::min(work.q_len, len);
    small.kv_len = std::min(work.kv_len, len);
    const Inputs<T> in = make_inputs<T>(small, 2);
    const auto truth = oracle<T>(in, small, options);
    const double few_eps =
        kFewEps * static_cast<double>(std::numeric_limits<T>::epsilon()) * max_magnitude(in.v_numbers);

    double yardstick = -1;
    for (const Contestant<T>& c : contestants<T>()) {
      if (!c.declines(small, options).empty()) continue;
      auto out = make_output<T>(small);
      c.prepare(out, in, small, options)();
      const double error = max_difference(out, truth);
      // The first contestant has no yardstick. Its bound is fixed, twice that of allowed_between_two().
      const double allowed = yardstick < 0 ? 8 * few_eps : 2 * yardstick + few_eps;
      expect_within(c.name, small, "the definition in a wider type", error, allowed);
      if (yardstick < 0) yardstick = error;
    }
  }
}

/// Returns how far two results of full size may differ. Weights sum to 1, and each has a relative error of about eps
/// times its score, which is below 8 for normally distributed inputs. So an error is at most 8 eps of the largest
/// value, and a difference 16. A single lost key out of 8192 changes a result ten times as much in float.
template <class T>
double allowed_between_two(const Inputs<T>& in) {
  return 16 * static_cast<double>(std::numeric_limits<T>::epsilon()) * max_magnitude(in.v_numbers);
}

}  // namespace bench
