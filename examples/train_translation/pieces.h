// English text as pieces of words.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "characters.h"

namespace translation {

/// Splits text into bytes and frequent sequences of them (byte-pair encoding: Sennrich, Haddow & Birch 2016), without
/// loss. A word's piece includes the space before it. The first letter of a text is converted to lower case unless that
/// needs more pieces, so that a word has the same pieces at the beginning as elsewhere; decode() restores the capital.
class Pieces {
 public:
  static constexpr std::int32_t kEnd = 256;          ///< ends a text, and precedes it in generation
  static constexpr std::int32_t kSmallLetter = 257;  ///< precedes a text that begins with a lower-case letter

  /// Learns at most `most` pieces from texts; each occurs at least twice there.
  static Pieces learn(const std::vector<std::string>& texts, Index most);

  /// Restores the pieces from merges(). @throws std::invalid_argument if the text is not valid.
  static Pieces from_merges(std::string_view merges);
  /// Returns the ids of the two pieces that were joined, for each piece from 258 on.
  std::string merges() const;

  Index size() const { return static_cast<Index>(bytes_.size()); }

  /// Returns the pieces of a text, without kEnd.
  Ids encode(std::string_view text) const;
  /// Returns the text of pieces, skipping kEnd. @throws std::out_of_range for an id that is not a piece.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// Returns the bytes of a piece, including the space before a word.
  const std::string& bytes(std::int32_t id) const { return bytes_.at(static_cast<std::size_t>(id)); }

 private:
  using IdPair = std::array<std::int32_t, 2>;

  Pieces();
  std::int32_t add(const IdPair& parts);
  Ids encode_unit(std::string_view unit) const;
  Ids encode_units(std::string_view text) const;

  std::vector<std::string> bytes_;
  std::vector<IdPair> merges_;
  std::map<IdPair, std::int32_t> joined_;
};

}  // namespace translation
