// Translation with a trained model.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "beam_search.h"

namespace translation {

/// Returns the translation of each sentence, as one line of UTF-8 (the model itself may generate any bytes); empty for
/// a sentence without characters. Characters that are not in the vocabulary are added to `unknown`. A sentence's
/// translation does not depend on the others.
/// @throws std::invalid_argument for a sentence that is not UTF-8.
std::vector<std::string> translate(const Translator& translator, const std::vector<std::string>& sentences,
                                   const SearchConfig& config, std::set<std::string>* unknown = nullptr);

/// A sentence, its translation, and the attention weights of each decoder layer.
struct AttendedTranslation {
  std::string sentence, translation;
  std::vector<std::string> characters, pieces;  ///< labels of keys and queries; both end with "end"
  std::vector<nn::Weights<float>> layers;       ///< (1, heads, pieces, characters) each
};

/// Translates a sentence and returns the attention weights of the translation.
/// @throws std::invalid_argument for a sentence that has no characters or is not UTF-8.
AttendedTranslation attended_translation(const Translator& translator, const std::string& sentence,
                                         const SearchConfig& config);

}  // namespace translation
