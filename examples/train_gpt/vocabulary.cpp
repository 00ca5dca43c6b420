#include "vocabulary.h"

#include <set>
#include <stdexcept>

#include "files.h"
#include "utf8.h"

namespace train_gpt {

using training::letters_of;

Vocabulary Vocabulary::of(std::string_view text) {
  std::set<std::string> characters;  // bytes of UTF-8 sort as the code points do
  for (std::string& c : letters_of(text)) characters.insert(std::move(c));
  std::string all;
  for (const std::string& c : characters) all += c;
  return Vocabulary(all);
}

Vocabulary::Vocabulary(std::string_view characters) : characters_(letters_of(characters)) {
  for (std::int32_t i = 0; i < size(); ++i)
    if (!tokens_.emplace(character(i), i).second)
      throw std::invalid_argument(training::one_line(character(i)) + " is twice among the characters");
}

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  for (const std::string& c : letters_of(text)) {
    const auto found = tokens_.find(c);
    if (found == tokens_.end())
      throw std::invalid_argument(training::one_line(c) + " (" + training::code_point_name(training::code_point(c)) +
                                  ") is not among the " + std::to_string(size()) + " characters of the model");
    tokens.push_back(found->second);
  }
  return tokens;
}

std::string Vocabulary::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += character(token);
  return text;
}

std::string Vocabulary::text() const {
  std::string all;
  for (const std::string& c : characters_) all += c;
  return all;
}

}  // namespace train_gpt
