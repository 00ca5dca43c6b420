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

/// The tokens of one language: a token's id is its line in the file, from 0. One id more, the last, stands for every
/// token that is not listed.
class Vocabulary {
 public:
  static constexpr attn::Index kBegin = 1;  // <s>
  static constexpr attn::Index kEnd = 2;    // </s>

  /// @throws FileError if the file cannot be read, or is no list of different UTF-8 tokens with <s> and </s> in their
  /// places.
  static Vocabulary load(const std::filesystem::path& path);

  /// How many ids there are, the unknown one included.
  attn::Index size() const { return static_cast<attn::Index>(tokens_.size()) + 1; }
  attn::Index unknown() const { return size() - 1; }

  /// The id of a token, unknown() if it is not listed.
  attn::Index id(const std::string& token) const;

  /// The token of an id, "<unk>" for unknown().
  const std::string& token(attn::Index id) const;

  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, attn::Index> ids_;
};

/// A word as its letters.
using Word = std::vector<std::string>;

/// The words of a text. A text of single letters, "آ ت ز م و ن", is one word; otherwise blanks separate words.
/// @throws std::invalid_argument if the text is not UTF-8, holds nothing but blanks, or has a word beyond
/// kMaxWordLength.
std::vector<Word> words_of(std::string_view text);

/// The longest word. No name is near so long; the limit bounds the memory and time that one line of input can ask for.
constexpr std::size_t kMaxWordLength = 200;

/// The ids of a word's letters; letters that are not in the vocabulary are appended to `unknown`.
Tokens ids_of(const Word& word, const Vocabulary& vocabulary, std::vector<std::string>& unknown);

/// Tokens put together again, with `separator` between them.
std::string text_of(const Tokens& tokens, const Vocabulary& vocabulary, std::string_view separator = "");

}  // namespace transliterate
