// Tokens and their ids, and names as sequences of tokens.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <attn/attn.h>

namespace transliterate {

using Tokens = std::vector<attn::Index>;

/// The tokens of one language: a token's id is its line in the file, from 0. An additional id, the last, represents all
/// tokens that are not listed.
class Vocabulary {
 public:
  static constexpr attn::Index kBegin = 1;  // <s>
  static constexpr attn::Index kEnd = 2;    // </s>

  /// Reads a vocabulary. @throws FileError if the file cannot be read, or is not a list of distinct UTF-8 tokens with
  /// <s> and </s> on lines 2 and 3.
  static Vocabulary load(const std::filesystem::path& path);

  /// Returns the number of ids, including the unknown one.
  attn::Index size() const { return static_cast<attn::Index>(tokens_.size()) + 1; }
  attn::Index unknown() const { return size() - 1; }

  /// Returns the id of a token, unknown() if it is not listed.
  attn::Index id(const std::string& token) const;

  /// Returns the token of an id, "<unk>" for unknown().
  const std::string& token(attn::Index id) const;

  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, attn::Index> ids_;
};

/// A word as its letters.
using Word = std::vector<std::string>;

/// Splits a text into words. A text of single letters, "آ ت ز م و ن", is one word; otherwise spaces separate words.
/// @throws std::invalid_argument if the text is not UTF-8, is blank, or has a word longer than kMaxWordLength.
std::vector<Word> words_of(std::string_view text);

/// Limit on the length of words. Names are far shorter; the limit bounds the memory and time that a line of input can
/// take.
constexpr std::size_t kMaxWordLength = 200;

/// Returns the ids of a word's letters; appends letters that are not in the vocabulary to `unknown`.
Tokens ids_of(const Word& word, const Vocabulary& vocabulary, std::vector<std::string>& unknown);

/// Concatenates tokens, with `separator` between them.
std::string text_of(const Tokens& tokens, const Vocabulary& vocabulary, std::string_view separator = "");

}  // namespace transliterate
