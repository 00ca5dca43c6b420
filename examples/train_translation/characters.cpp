#include "characters.h"

#include <algorithm>
#include <stdexcept>

#include "utf8.h"

namespace translation {

namespace {

struct Form {
  std::string_view from, to;
};

constexpr Form kForms[] = {{",", "，"}, {"﹐", "，"}, {"?", "？"},  {"!", "！"}, {":", "："}, {";", "；"},
                           {"(", "（"}, {")", "）"},  {"．", "。"}, {"｡", "。"}, {"\"", "“"}, {"＂", "“"},
                           {"”", "“"},  {"「", "“"},  {"」", "“"},  {"『", "“"}, {"』", "“"}, {"•", "·"}};

std::string narrow_or_usual(const std::string& character) {
  for (const Form& form : kForms)
    if (character == form.from) return std::string(form.to);
  const char32_t code = training::code_point(character);
  const bool wide = (code >= U'０' && code <= U'９') || (code >= U'Ａ' && code <= U'Ｚ') ||
                    (code >= U'ａ' && code <= U'ｚ') || code == U'％' || code == U'－' || code == U'＋';
  return wide ? std::string(1, static_cast<char>(code - 0xFEE0)) : character;
}

/// Whether a character is invisible. Text copied from web pages often contains such characters.
bool is_invisible(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

bool is_latin_or_digit(const std::string& character) {
  const char c = character.front();
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

std::vector<std::string> characters_of(std::string_view sentence) {
  std::vector<std::string> all;
  bool blank = false;  // white space before this character
  for (const std::string& given : training::letters_of(sentence)) {
    if (training::is_space(given)) {
      blank = true;
      continue;
    }
    if (is_invisible(training::code_point(given))) continue;
    std::string character = narrow_or_usual(given);
    if (character == "." && (all.empty() || !is_latin_or_digit(all.back()))) character = "。";
    if (blank && !all.empty() && is_latin_or_digit(all.back()) && is_latin_or_digit(character)) all.push_back(" ");
    blank = false;
    all.push_back(std::move(character));
  }
  while (!all.empty() && (all.back() == "。" || all.back() == ".")) all.pop_back();
  return all;
}

Characters::Characters() : characters_{"", ""} {}

Characters::Characters(const std::vector<Pair>& pairs) : Characters() {
  std::map<std::string, Index> times;
  for (const Pair& pair : pairs)
    for (const std::string& character : characters_of(pair.chinese)) ++times[character];
  std::vector<std::pair<std::string, Index>> sorted(times.begin(), times.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [character, count] : sorted) add(character);
}

Characters Characters::from_text(std::string_view text) {
  Characters result;
  for (const std::string& character : training::letters_of(text)) {
    if (result.ids_.contains(character)) throw std::invalid_argument(character + " appears twice");
    result.add(character);
  }
  return result;
}

void Characters::add(const std::string& character) {
  ids_.emplace(character, static_cast<std::int32_t>(characters_.size()));
  characters_.push_back(character);
}

std::string Characters::text() const {
  std::string all;
  for (const std::string& character : characters_) all += character;
  return all;
}

Ids Characters::encode(std::string_view sentence, std::set<std::string>* unknown) const {
  Ids ids;
  for (const std::string& character : characters_of(sentence)) {
    const auto found = ids_.find(character);
    if (found == ids_.end() && unknown) unknown->insert(character);
    ids.push_back(found == ids_.end() ? kUnknown : found->second);
  }
  ids.push_back(kEnd);
  return ids;
}

}  // namespace translation
