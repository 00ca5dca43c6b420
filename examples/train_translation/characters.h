// Chinese as characters.
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

/// The characters of a sentence, written in one way: punctuation and quotation marks in their Chinese forms, Latin
/// letters and digits in their narrow ones, and blanks only between those. Invisible characters are left out, and the
/// full stop at the end, which says nothing.
/// @throws std::invalid_argument with the offset of the first byte that is not UTF-8.
std::vector<std::string> characters_of(std::string_view sentence);

/// The characters that a model knows.
class Characters {
 public:
  static constexpr std::int32_t kUnknown = 0, kEnd = 1;

  /// The characters of the pairs, the frequent ones first.
  explicit Characters(const std::vector<Pair>& pairs);
  /// The characters of a text, each once. @throws std::invalid_argument if it is something else.
  static Characters from_text(std::string_view text);
  /// All characters, from number 2 on.
  std::string text() const;

  Index size() const { return static_cast<Index>(characters_.size()); }

  /// The numbers of a sentence's characters, then kEnd. Characters that are not known are kUnknown, and are added to
  /// `unknown`.
  Ids encode(std::string_view sentence, std::set<std::string>* unknown = nullptr) const;

 private:
  Characters();
  void add(const std::string& character);

  std::vector<std::string> characters_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
};

}  // namespace translation
