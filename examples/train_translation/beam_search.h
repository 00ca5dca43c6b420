// From source tokens to target tokens.
#pragma once

#include <vector>

#include "translator.h"

namespace translation {

struct SearchConfig {
  Index beams = 1;  ///< how many beginnings of each target are followed; 1: the likeliest next piece, always
  /// A target's score is its log-probability, divided by its length, the end included, to this power: 0 prefers short
  /// targets, 1 is the mean of its pieces. (Wu et al. 2016 divide by ((5 + length) / 6) to a power, much the same.)
  double length_penalty = 1;
};

/// The targets of the highest score that are found, without Pieces::kEnd, token by token, for all sources at once. What
/// is found for a source depends on that source alone. A target is cut off at three times its source's length and 20
/// pieces. A search ends when no beam can come to a higher score than the best target that ended, however long it
/// becomes. There must be sources, none of them empty. @throws std::invalid_argument unless beams > 0.
std::vector<Ids> search(const nn::Transformer<float>& model, const std::vector<Ids>& sources,
                        const SearchConfig& config);

}  // namespace translation
