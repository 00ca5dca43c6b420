// The rule that the results of a shifted call are held to, and what is counted of them.
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "case.h"
#include "shifted_numbers.h"

namespace fuzz::shifted {

/// What some results of one kind, say gradients of queries in half by attention_backward(), were.
struct Sum {
  std::uint64_t judged = 0, missed = 0;
  double share = 0;   ///< the largest share of the allowed error that was used
  std::string first;  ///< of those that missed, and the case that it came from
};
using Sums = std::map<std::string, Sum>;

/// What the kinds of a case have in common.
struct Report {
  Sums& sums;
  std::string scalars, constant;  ///< as kinds name them
  std::uint64_t number;
  std::uint64_t missed = 0;
};

/// Judges the results of one call with queries of Q.
template <class Q>
struct Judge {
  using T = Computed<Q>;

  Report& report;
  const std::ostringstream& text;  ///< of the case
  Wide slack = 0;                  ///< how far scores may be off, in eps; 0 where they are exact
  bool has_common_part = false;

  /// A result may err by `factor` times what the definition errs by, by a few eps of its largest number and of what
  /// that is a sum of, by what scores that are no exact sums move it by, and by what storing it takes.
  void of(const std::string& way, const char* tensor, const std::vector<Wide>& is, const std::vector<Wide>& naive,
          const Part& right, double factor, const Rounding& stored) {
    const Wide off = error(is, right.x), eps = std::numeric_limits<T>::epsilon(),
               vanishes = 1e5L * static_cast<Wide>(std::numeric_limits<T>::min());  // weights below it are 0
    Wide by_definition = error(naive, right.x), most = 0;
    for (const Wide x : right.x)
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
    // The definition itself is held to the oracle, far less closely. It rounds weights as queries are.
    const Wide relative = static_cast<Wide>(stored.relative), absolute = static_cast<Wide>(stored.absolute) + vanishes,
               of_weights = kIsNarrow<Q> ? static_cast<Wide>(4 * kRounding<Q>.relative) : 0,
               small_weights = static_cast<Wide>(1e5 * kRounding<Q>.absolute);
    const bool is_defined =
        by_definition <=
        (64 * eps + of_weights + 4 * relative) * (most + (1 + slack) * right.size) + small_weights + absolute;
    if (!is_defined) {
      count_miss(report.sums["the definition: " + way + ' ' + tensor + ", " + report.scalars], by_definition, 0, 0,
                 most);
      by_definition = 0;
    }
    const Wide allowed = static_cast<Wide>(factor) * by_definition + (8 * eps + relative) * most +
                         eps * (2 + slack) * right.size + absolute;
    Sum& sum = report.sums[way + ' ' + tensor + ", " + report.scalars + ", c " + report.constant +
                           (has_common_part ? ", common part" : "")];
    ++sum.judged;
    sum.share = std::max(sum.share, static_cast<double>(allowed == 0 ? 0 : off / allowed));
    if (!(off <= allowed)) count_miss(sum, off, by_definition, allowed, most);
  }

 private:
  void count_miss(Sum& sum, Wide off, Wide by_definition, Wide allowed, Wide most) {
    ++sum.missed, ++report.missed;
    if (!sum.first.empty()) return;
    std::ostringstream line;
    line.precision(2);
    const Wide unit = most > 0 ? most : 1;
    line << "error " << off / unit << ", naive " << by_definition / unit << ", allowed " << allowed / unit << " of "
         << most << "; --case " << report.number << ':' << text.str();
    sum.first = line.str();
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
