// English as pieces of words.
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

/// Cuts texts into bytes and frequent sequences of them (byte-pair encoding: Sennrich, Haddow & Birch 2016). Any text
/// comes back as it was. A word's piece has the blank before it, and the first letter of a text is a small one if that
/// makes no more pieces, so that a word is the same wherever it stands; a capital at the beginning is understood.
class Pieces {
 public:
  static constexpr std::int32_t kEnd = 256;  ///< the end of a text, and what stands before it when it is generated
  static constexpr std::int32_t kSmallLetter = 257;  ///< before a text that begins with a small letter

  /// Learns at most `most` sequences from texts; each occurs at least twice there.
  static Pieces learn(const std::vector<std::string>& texts, Index most);

  /// The pieces of what merges() wrote. @throws std::invalid_argument if it is something else.
  static Pieces from_merges(std::string_view merges);
  /// The numbers of two pieces that were joined, for each piece from 258 on.
  std::string merges() const;

  Index size() const { return static_cast<Index>(bytes_.size()); }

  /// The pieces of a text, without kEnd.
  Ids encode(std::string_view text) const;
  /// The text of pieces; kEnd is left out. @throws std::out_of_range for a number that is no piece.
  std::string decode(std::span<const std::int32_t> ids) const;
  /// The bytes of a piece, with the blank before a word.
  const std::string& bytes(std::int32_t id) const { return bytes_.at(static_cast<std::size_t>(id)); }

 private:
  using Two = std::array<std::int32_t, 2>;

  Pieces();
  std::int32_t add(const Two& parts);
  Ids encode_unit(std::string_view unit) const;
  Ids encode_units(std::string_view text) const;

  std::vector<std::string> bytes_;
  std::vector<Two> merges_;
  std::map<Two, std::int32_t> joined_;
};

}  // namespace translation
