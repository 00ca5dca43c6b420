// Compares results with the oracle's.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "numbers.h"
#include "oracle.h"

namespace fuzz {

/// Judges one element. `relative` and `absolute`: its storage rounding. Returns the fraction of the allowed error.
template <class R>
double judge_number(R is, R expected, R error, double relative, double absolute, const char* what, Index b, Index h,
                    Index i, Index c) {
  const auto wrong = [&](const std::string& why) {
    fail(what, " (", b, ", ", h, ", ", i, ", ", c, ") is ", is, ", ", why, ' ', expected);
  };
  if (error == std::numeric_limits<R>::infinity()) return 0;
  if (std::isnan(expected)) {
    if (!std::isnan(is)) wrong("not");
    return 0;
  }
  if (expected == std::numeric_limits<R>::infinity()) {
    if (std::isfinite(is)) wrong("finite, not");
    return 0;
  }
  if (is == expected) return 0;
  if (!std::isfinite(expected)) wrong("not");
  const R allowed = error + static_cast<R>(relative) * (std::abs(expected) + error) + static_cast<R>(absolute);
  const R off = std::abs(is - expected);
  if (!(off <= allowed))
    wrong("off by " + std::to_string(static_cast<double>(off / allowed)) + " times the allowed error; expected");
  return static_cast<double>(off / allowed);
}

/// A call's results for one batch element, packed: out (heads, q_len, v_dim), lse (heads, q_len), weights (heads,
/// q_len, kv_len). Empty if not requested.
template <class R>
struct Results {
  std::vector<R> out, lse, weights;
  double out_relative = 0, out_absolute = 0, weights_relative = 0, weights_absolute = 0;
};

template <class R>
void judge(Case& c, const Sequence<R>& s, const Meanings& meanings, const Precision& precision,
           const Results<R>& results, const std::string& path) {
  const Index n = s.lens.q_len, m = s.lens.kv_len;
  double out_share = 0, lse_share = 0, weights_share = 0;
  for (Index h = 0; h < s.heads; ++h) {
    const Expected<R> e = attend(s, h, meanings, precision);
    for (Index i = 0; i < n; ++i) {
      if (!results.lse.empty())
        lse_share = std::max(
            lse_share, judge_number(results.lse[static_cast<std::size_t>(h * n + i)],
                                    e.lse[static_cast<std::size_t>(i)], e.lse_error[static_cast<std::size_t>(i)], 0.0,
                                    0.0, (path + " lse").c_str(), s.batch, h, i, 0));
      for (Index x = 0; !results.out.empty() && x < s.v_dim; ++x)
        out_share = std::max(out_share, judge_number(results.out[static_cast<std::size_t>((h * n + i) * s.v_dim + x)],
                                                     e.out(i, x), e.out_error(i, x), results.out_relative,
                                                     results.out_absolute, (path + " out").c_str(), s.batch, h, i, x));
      for (Index j = 0; !results.weights.empty() && j < m; ++j)
        weights_share = std::max(
            weights_share, judge_number(results.weights[static_cast<std::size_t>((h * n + i) * m + j)], e.weights(i, j),
                                        e.weights_error(i, j), results.weights_relative, results.weights_absolute,
                                        (path + " weights").c_str(), s.batch, h, i, j));
    }
  }
  if (!results.out.empty()) c.used(path + " out", out_share);
  if (!results.lse.empty()) c.used(path + " lse", lse_share);
  if (!results.weights.empty()) c.used(path + " weights", weights_share);
}

}  // namespace fuzz
