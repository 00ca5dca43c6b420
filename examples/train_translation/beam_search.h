// From source tokens to target tokens.
#pragma once

#include <vector>

#include "translator.h"

namespace translation {

struct SearchConfig {
  Index beams = 1;            ///< how many beginnings of each target are followed; 1: the likeliest next piece, always
  double length_penalty = 1;  ///< a target's log-probability is divided by its length to this power (Wu et al. 2016)
};

/// The likeliest targets that are found, without Pieces::kEnd, token by token, for all sources at once. What is found
/// for a source depends on that source alone. A target is cut off at three times its source's length and 20 pieces.
/// There must be sources, none of them empty. @throws std::invalid_argument unless beams > 0.
std::vector<Ids> search(const nn::Transformer<float>& model, const std::vector<Ids>& sources,
                        const SearchConfig& config);

}  // namespace translation
