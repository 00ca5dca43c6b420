// Scores of translations against references.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace translation {

/// Returns the chrF2 of all translations together, 0 to 100, as sacreBLEU computes it by default: the F-score of
/// n-grams of 1 to 6 characters without spaces, in which recall has twice the weight of precision (Popović 2015, 2016).
/// 0 if there are no translations.
/// @throws std::invalid_argument if the number of references differs, or a text is not UTF-8.
double chrf(std::span<const std::string> translations, std::span<const std::string> references);

/// Returns the share of translations that equal their references, 0 to 1. 0 if there are no translations.
double exact_share(std::span<const std::string> translations, std::span<const std::string> references);

}  // namespace translation
