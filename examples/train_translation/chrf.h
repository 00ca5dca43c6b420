// How good translations are.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace translation {

/// chrF2 of all translations together, 0 to 100, as sacreBLEU computes it by default: the F-score of n-grams of 1 to 6
/// characters without blanks, in which recall counts twice as much as precision (Popović 2015, 2016). 0 for none.
/// @throws std::invalid_argument if there are not as many references, or something is not UTF-8.
double chrf(std::span<const std::string> translations, std::span<const std::string> references);

/// The share of translations that are their references, 0 to 1. 0 for none.
double exact_share(std::span<const std::string> translations, std::span<const std::string> references);

}  // namespace translation
