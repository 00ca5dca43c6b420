// From source tokens to target tokens.
#pragma once

#include <vector>

#include "translator.h"

namespace translation {

struct SearchConfig {
  Index beams = 1;  ///< how many beginnings of each target are followed; 1: the likeliest next piece, always
  /// A target's score is its log-probability divided by a power of its length, the end included. This is the exponent:
  /// 0 prefers short targets, 1 is the mean of its pieces. (Wu et al. 2016 divide by a power of (5 + length) / 6, which
  /// is much the same.)
  double length_penalty = 1;
};

/// Searches the targets of the highest score, without Pieces::kEnd, token by token and for all sources at once. What is
/// found for a source depends on that source alone. A target is cut off at three times its source's length and 20
/// pieces. A search ends when no beam can come to a higher score than the best target that ended, however long it
/// becomes. There must be sources, and none of them may be empty. @throws std::invalid_argument unless beams > 0.
std::vector<Ids> search(const nn::Transformer<float>& model, const std::vector<Ids>& sources,
                        const SearchConfig& config);

}  // namespace translation
