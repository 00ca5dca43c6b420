// temperature(): scores divided by a temperature per head.
#pragma once

#include <limits>
#include <utility>

#include "attn/core/mods/learned_mods.h"

namespace attn {

/// Divides each score by its head's temperature: x -> x / temperatures[head]. A temperature above 1 spreads the weights
/// over more keys; one below 1 concentrates them on fewer (Hinton et al. 2015, eq. 1). There is one temperature per
/// query head.
/// @throws std::invalid_argument unless all temperatures are positive and neither underflow nor overflow as floats, and
/// from the attention call unless there is one per head.
inline auto temperature(Numbers given_temperatures) {
  detail::ShortList<double>& temperatures = given_temperatures.values;
  for (std::size_t h = 0; h < temperatures.size(); ++h) {
    using Float = std::numeric_limits<float>;
    detail::require(temperatures[h] >= Float::min() && temperatures[h] <= Float::max(), "temperature[", h,
                    "] must be positive, and a normal number as a float, but is ", temperatures[h]);
  }
  return bind_mod([temperatures = std::move(temperatures)](const Problem& problem) {
    const Index given = static_cast<Index>(temperatures.size());
    detail::require(given == problem.heads, "temperature has ", given, " values for ", problem.heads, " heads");
    return score_mod(
        [t = temperatures.data()](auto x, const Position& p) { return x / static_cast<decltype(x)>(t[p.head]); });
  });
}

/// temperature() with learned temperatures: the backward pass adds their gradients to `grad`, which has one element per
/// head and must outlive the mod.
template <class G>
auto temperature(Numbers temperatures, G&& grad) {
  temperature(temperatures);  // checks the temperatures
  return detail::learned_by_head("temperature", std::move(temperatures), std::forward<G>(grad),
                                 [](auto x, auto t, const Position&) { return x / t; });
}

}  // namespace attn
