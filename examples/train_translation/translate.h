// Sentences through a trained model.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "beam_search.h"

namespace translation {

/// The translation of each sentence, on one line of UTF-8 (a model may write any bytes); empty for a sentence without
/// any characters. Characters that the model does not know are added to `unknown`. A sentence's translation does not
/// depend on the others.
/// @throws std::invalid_argument for a sentence that is not UTF-8.
std::vector<std::string> translate(const Translator& translator, const std::vector<std::string>& sentences,
                                   const SearchConfig& config, std::set<std::string>* unknown = nullptr);

/// Where each decoder layer looked while it wrote a sentence's translation.
struct Look {
  std::string sentence, translation;
  std::vector<std::string> characters, pieces;  ///< the labels of keys and queries; both end with "end"
  std::vector<nn::Weights<float>> layers;       ///< (1, heads, pieces, characters) of each
};

/// @throws std::invalid_argument for a sentence without any characters, or that is not UTF-8.
Look look_of(const Translator& translator, const std::string& sentence, const SearchConfig& config);

}  // namespace translation
