// Chinese sentences as characters.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pairs.h"

namespace translation {

using Ids = std::vector<std::int32_t>;

/// Returns the characters of a sentence in normalised form: punctuation and quotation marks full-width, Latin letters
/// and digits half-width, and spaces only between these. Drops invisible characters, and the full stop at the end,
/// which carries no information.
/// @throws std::invalid_argument with the offset of the first byte that is not UTF-8.
std::vector<std::string> characters_of(std::string_view sentence);

/// The character vocabulary of a model.
class Characters {
 public:
  static constexpr std::int32_t kUnknown = 0, kEnd = 1;

  /// The vocabulary of the pairs, most frequent characters first.
  explicit Characters(const std::vector<Pair>& pairs);
  /// Restores a vocabulary from text(). @throws std::invalid_argument if a character repeats, or the text is not UTF-8.
  static Characters from_text(std::string_view text);
  /// Returns all characters, from id 2 on.
  std::string text() const;

  Index size() const { return static_cast<Index>(characters_.size()); }

  /// Returns the ids of a sentence's characters, then kEnd. Characters outside the vocabulary become kUnknown, and are
  /// added to `unknown`.
  Ids encode(std::string_view sentence, std::set<std::string>* unknown = nullptr) const;

 private:
  Characters();
  void add(const std::string& character);

  std::vector<std::string> characters_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
};

}  // namespace translation
