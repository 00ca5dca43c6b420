// Beam search for the target of a source.
#pragma once

#include <vector>

#include "translator.h"

namespace translation {

struct SearchConfig {
  Index beams = 1;  ///< hypotheses per target; 1: greedy
  /// Exponent of the length penalty: a target's score is its log-probability divided by this power of its length,
  /// including its end. 0 prefers short targets, 1 scores by the mean over pieces. (Wu et al. 2016 divide by a power of
  /// (5 + length) / 6, which has a similar effect.)
  double length_penalty = 1;
};

/// Searches for the targets of the highest score, token by token and for all sources at once; results have no
/// Pieces::kEnd. A source's target does not depend on the other sources. A target is truncated at three times its
/// source's length plus 20 pieces. A search ends when no beam can exceed the score of the best target that ended, at
/// any length. There must be sources, and none may be empty. @throws std::invalid_argument unless beams > 0.
std::vector<Ids> search(const nn::Transformer<float>& model, const std::vector<Ids>& sources,
                        const SearchConfig& config);

}  // namespace translation
