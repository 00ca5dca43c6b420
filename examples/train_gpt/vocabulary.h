// The characters of a text and their tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace train_gpt {

/// A vocabulary of characters, which are Unicode code points, not bytes: whatever is generated from them is valid
/// UTF-8, and a text in Chinese or Greek is as long for the model as for a reader.
class Vocabulary {
 public:
  /// Returns the vocabulary of the characters in a text, in code point order. @throws std::invalid_argument if the text
  /// is not UTF-8.
  static Vocabulary of(std::string_view text);

  /// Numbers the given characters in this order. @throws std::invalid_argument if they are not UTF-8, or one occurs
  /// twice.
  explicit Vocabulary(std::string_view characters);

  std::int32_t size() const { return static_cast<std::int32_t>(characters_.size()); }
  const std::string& character(std::int32_t token) const { return characters_.at(static_cast<std::size_t>(token)); }
  bool contains(std::string_view character) const;

  /// Returns the tokens of a text. @throws std::invalid_argument if it is not UTF-8, or has a character that is not in
  /// the vocabulary.
  std::vector<std::int32_t> encode(std::string_view text) const;

  /// Returns all characters as one text, from which the constructor restores the vocabulary.
  std::string text() const;

 private:
  std::vector<std::string> characters_;
  std::unordered_map<char32_t, std::int32_t> tokens_;
};

}  // namespace train_gpt
