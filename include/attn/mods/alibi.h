// alibi(): a score penalty that grows with distance.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "attn/core/mods/learned_mods.h"

namespace attn {

/// Subtracts a penalty that grows with distance from each score: x -> x - slopes[head] * (q - kv) (Press et al. 2022,
/// section 3). There is one slope per query head. Keys after the query would get a bonus, so combine alibi() with
/// causal(), as the paper does.
/// @throws std::invalid_argument for a slope that is not finite as a float, and from the attention call unless there is
/// one slope per head.
inline auto alibi(Numbers given_slopes) {
  detail::ShortList<double>& slopes = given_slopes.values;
  for (std::size_t h = 0; h < slopes.size(); ++h)
    detail::require(std::abs(slopes[h]) <= std::numeric_limits<float>::max(), "alibi: slope ", h,
                    " must be finite as a float, but is ", slopes[h]);
  return bind_mod([slopes = std::move(slopes)](const Problem& problem) {
    const Index given = static_cast<Index>(slopes.size());
    detail::require(given == problem.heads, "alibi has ", given, " slopes for ", problem.heads,
                    " heads; alibi_slopes(heads) makes them");
    return score_mod([slope = slopes.data()](auto x, const Position& p) {
      using X = decltype(x);
      return x - static_cast<X>(slope[p.head]) * static_cast<X>(p.q - p.kv);
    });
  });
}

/// alibi() with learned slopes: the backward pass adds their gradients to `grad`, which has one element per head and
/// must outlive the mod.
template <class G>
auto alibi(Numbers slopes, G&& grad) {
  alibi(slopes);  // checks the slopes
  return detail::learned_by_head(
      "alibi", std::move(slopes), std::forward<G>(grad),
      [](auto x, auto slope, const Position& p) { return x - slope * static_cast<decltype(x)>(p.q - p.kv); });
}

/// Returns the paper's slopes, one per head: 2^(-8 (h + 1) / heads) if the number of heads is a power of two, and the
/// paper's interpolation otherwise.
/// @throws std::invalid_argument unless 0 < heads <= 2^24.
inline std::vector<double> alibi_slopes(Index heads) {
  constexpr Index kMost = Index(1) << 24;  // each head has an entry in a table
  detail::require(heads > 0 && heads <= kMost, "alibi_slopes(", heads, "): the number of heads must be in 1..", kMost);
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (Index h = 0; h < power; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(power)));
  for (Index h = 0; h < heads - power; ++h)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(2 * h + 1) / static_cast<double>(power)));
  return slopes;
}

}  // namespace attn
