// The error bound for the results of a shifted call.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "case.h"
#include "shifted_numbers.h"

namespace fuzz::shifted {

/// Properties shared by a case's results, and the results that exceeded their bounds.
struct Report {
  std::string scalars, constant = "0";  ///< as in the names of results
  std::vector<std::string> misses = {};
};

/// The share that is no share of the allowed error: the largest error over naive's, or over a few units in the last
/// place of the result, whichever is larger.
inline constexpr const char* kOverNaive = "error over naive's";

/// Judges the results of one call with queries of Q.
template <class Q>
struct Judge {
  using T = Computed<Q>;

  Case& c;
  Report& report;
  Wide slack = 0;  ///< error of the scores, in eps; 0 where they are exact
  bool has_common_part = false;

  /// Judges a result. It may have `factor` times the naive path's error, plus a few eps of its largest element and of
  /// the magnitudes of its terms, plus the effect of inexact scores, plus the rounding of its storage.
  void of(const std::string& call_name, const char* tensor, const std::vector<Wide>& is, const std::vector<Wide>& naive,
          const Part& right, double factor, const Rounding& stored) {
    const Wide off = error(is, right.x), eps = std::numeric_limits<T>::epsilon(),
               vanishes = 1e5L * static_cast<Wide>(std::numeric_limits<T>::min());  // weights below it are 0
    Wide by_definition = error(naive, right.x), most = 0;
    for (const Wide x : right.x)
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
    // The naive path itself is compared with the oracle, with a far wider bound. It rounds weights to the query's
    // scalar.
    const Wide relative = static_cast<Wide>(stored.relative), absolute = static_cast<Wide>(stored.absolute) + vanishes,
               of_weights = kIsNarrow<Q> ? static_cast<Wide>(4 * kRounding<Q>.relative) : 0,
               small_weights = static_cast<Wide>(1e5 * kRounding<Q>.absolute);
    const bool is_defined =
        by_definition <=
        (64 * eps + of_weights + 4 * relative) * (most + (1 + slack) * right.size) + small_weights + absolute;
    if (!is_defined) {
      add_miss("the definition: " + call_name + ' ' + tensor + ", " + report.scalars, by_definition, 0, 0, most);
      by_definition = 0;
    }
    const Wide few_units = (8 * eps + relative) * most + eps * (2 + slack) * right.size + absolute,
               allowed = static_cast<Wide>(factor) * by_definition + few_units;
    const std::string kind = call_name + ' ' + tensor + ", " + report.scalars + ", c " + report.constant +
                             (has_common_part ? ", common part" : "");
    c.used(kind, static_cast<double>(allowed == 0 ? 0 : off / allowed));
    if (off > 0) c.used(kOverNaive, static_cast<double>(off / std::max(by_definition, few_units)));
    if (!(off <= allowed)) add_miss(kind, off, by_definition, allowed, most);
  }

 private:
  void add_miss(const std::string& kind, Wide off, Wide by_definition, Wide allowed, Wide most) {
    std::ostringstream line;
    line.precision(2);
    const Wide unit = most > 0 ? most : 1;
    line << kind << ": error " << off / unit << ", naive " << by_definition / unit << ", allowed " << allowed / unit
         << " of " << most;
    report.misses.push_back(line.str());
  }
  static Wide error(const std::vector<Wide>& is, const std::vector<Wide>& right) {
    constexpr Wide kInf = std::numeric_limits<Wide>::infinity();
    if (is.size() != right.size()) return kInf;
    Wide most = 0;
    for (std::size_t i = 0; i < is.size(); ++i) {
      if (is[i] == right[i]) continue;
      if (!std::isfinite(is[i]) || !std::isfinite(right[i])) return kInf;
      most = std::max(most, std::abs(is[i] - right[i]));
    }
    return most;
  }
};

}  // namespace fuzz::shifted
