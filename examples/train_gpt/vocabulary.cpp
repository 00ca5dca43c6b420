#include "vocabulary.h"

#include <algorithm>
#include <stdexcept>

#include "printable.h"
#include "utf8.h"

namespace train_gpt {

namespace {

/// Calls f with each character's bytes, as a view: a text may have hundreds of millions of characters.
template <class F>
void for_characters(std::string_view text, const F& f) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = training::letter_length(text.substr(at));
    if (length == 0) throw std::invalid_argument("byte " + std::to_string(at + 1) + " is not valid UTF-8");
    f(text.substr(at, length));
    at += length;
  }
}

}  // namespace

Vocabulary Vocabulary::of(std::string_view text) {
  std::unordered_map<char32_t, std::string_view> found;
  for_characters(text, [&](std::string_view c) { found.emplace(training::code_point(c), c); });
  std::vector<std::string_view> characters;
  for (const auto& [code, character] : found) characters.push_back(character);
  std::sort(characters.begin(), characters.end());  // UTF-8 bytes sort in the order of code points
  std::string all;
  for (const std::string_view c : characters) all += c;
  return Vocabulary(all);
}

Vocabulary::Vocabulary(std::string_view characters) {
  for_characters(characters, [&](std::string_view c) {
    if (!tokens_.emplace(training::code_point(c), size()).second)
      throw std::invalid_argument(nn::in_quotes(c) + " appears twice among the characters");
    characters_.emplace_back(c);
  });
}

bool Vocabulary::contains(std::string_view character) const {
  return tokens_.contains(training::code_point(character));
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  // Counts the bytes that do not continue a character; invalid UTF-8 is found below.
  tokens.reserve(static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; })));
  for_characters(text, [&](std::string_view c) {
    const auto found = tokens_.find(training::code_point(c));
    if (found == tokens_.end())
      throw std::invalid_argument(nn::in_quotes(c) + " (" + training::code_point_name(training::code_point(c)) +
                                  ") is not among the " + std::to_string(size()) + " characters of the model");
    tokens.push_back(found->second);
  });
  return tokens;
}

std::string Vocabulary::text() const {
  std::string all;
  for (const std::string& c : characters_) all += c;
  return all;
}

}  // namespace train_gpt
