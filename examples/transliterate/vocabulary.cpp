#include "vocabulary.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "model_file.h"
#include "utf8.h"

namespace transliterate {

namespace {

const std::string kUnknownToken = "<unk>";

// Far larger than any list of letters; a larger file is rejected without being read.
constexpr std::uintmax_t kMaxFileSize = 1 << 20;

std::vector<std::string> read_lines(const std::filesystem::path& path, const std::string& name) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw FileError(name, "there is no such file");
  if (!std::filesystem::is_regular_file(status)) throw FileError(name, "not a regular file");
  if (std::filesystem::file_size(path, error) > kMaxFileSize) throw FileError(name, "too large for a vocabulary");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FileError(name, "cannot be opened");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

Vocabulary Vocabulary::load(const std::filesystem::path& path) {
  Vocabulary vocabulary;
  vocabulary.file_ = path.string();
  vocabulary.tokens_ = read_lines(path, vocabulary.file_);
  const auto fail = [&](std::size_t line, const std::string& what_is_wrong) {
    throw FileError(vocabulary.file_, "line " + std::to_string(line + 1) + ' ' + what_is_wrong);
  };
  for (std::size_t i = 0; i < vocabulary.tokens_.size(); ++i) {
    const std::string& token = vocabulary.tokens_[i];
    try {
      if (letters_of(token).empty()) fail(i, "is empty");
    } catch (const std::invalid_argument&) {
      fail(i, "is not valid UTF-8");
    }
    if (!vocabulary.ids_.emplace(token, static_cast<attn::Index>(i)).second) fail(i, "repeats the token " + token);
  }
  if (vocabulary.id("<s>") != kBegin || vocabulary.id("</s>") != kEnd)
    throw FileError(vocabulary.file_, "not a vocabulary: lines 2 and 3 must be <s> and </s>");
  return vocabulary;
}

attn::Index Vocabulary::id(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? unknown() : found->second;
}

const std::string& Vocabulary::token(attn::Index id) const {
  if (id < 0 || id >= size())
    throw std::out_of_range("token id " + std::to_string(id) + " is outside 0.." + std::to_string(size() - 1));
  return id == unknown() ? kUnknownToken : tokens_[static_cast<std::size_t>(id)];
}

std::vector<Word> words_of(std::string_view text) {
  std::vector<Word> words;
  bool in_word = false;
  for (std::string& letter : letters_of(text)) {
    const bool space = is_space(letter);
    if (!space && !in_word) words.emplace_back();
    if (!space) words.back().push_back(std::move(letter));
    in_word = !space;
  }
  if (words.empty()) throw std::invalid_argument("there are no letters in it");

  const bool spelled_out = std::all_of(words.begin(), words.end(), [](const Word& word) { return word.size() == 1; });
  if (spelled_out) {
    Word joined;
    for (const Word& word : words) joined.push_back(word.front());
    words = {joined};
  }
  for (const Word& word : words)
    if (word.size() > kMaxWordLength)
      throw std::invalid_argument("a word of " + std::to_string(word.size()) + " letters, but at most " +
                                  std::to_string(kMaxWordLength) + " are allowed");
  return words;
}

Tokens ids_of(const Word& word, const Vocabulary& vocabulary, std::vector<std::string>& unknown) {
  Tokens ids;
  for (const std::string& letter : word) {
    ids.push_back(vocabulary.id(letter));
    if (ids.back() == vocabulary.unknown()) unknown.push_back(letter);
  }
  return ids;
}

std::string text_of(const Tokens& tokens, const Vocabulary& vocabulary, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += separator;
    text += vocabulary.token(tokens[i]);
  }
  return text;
}

}  // namespace transliterate
