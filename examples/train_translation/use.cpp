#include "use.h"

#include <algorithm>
#include <iostream>
#include <stdexcept>

#include "attention_map.h"
#include "files.h"
#include "utf8.h"

namespace translation {

namespace {

/// No sentence is near so long; it bounds the memory and time that one line can ask for.
constexpr std::size_t kMaxCharacters = 1000;

void check_sentence(const std::string& where, const std::string& sentence) {
  std::size_t length = 0;
  try {
    length = training::letters_of(sentence).size();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(where + ": " + error.what());
  }
  if (length > kMaxCharacters)
    throw std::invalid_argument(where + ": " + std::to_string(length) + " characters, at most " +
                                std::to_string(kMaxCharacters) + " are allowed");
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines;
  std::string text = training::read_file(file);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    check_sentence(file + ": line " + std::to_string(lines.size()), lines.back());
    at = end + 1;
  }
  return lines;
}

void warn(const std::set<std::string>& unknown) {
  if (unknown.empty()) return;
  std::cerr << "train_translation: warning: the model does not know";
  std::size_t shown = 0;
  for (const std::string& character : unknown) {
    if (shown++ == 20) {
      std::cerr << " and " << unknown.size() - 20 << " others";
      break;
    }
    std::cerr << (shown == 1 ? " " : ", ") << character << " ("
              << training::code_point_name(training::code_point(character)) << ')';
  }
  std::cerr << '\n';
}

}  // namespace

void check_sentences(const Options& options) {
  for (std::size_t i = 0; i < options.translate.size(); ++i)
    check_sentence("sentence " + std::to_string(i + 1) + " of --translate", options.translate[i]);
}

void print_translations(const Translator& translator, const Options& options) {
  check_sentences(options);
  std::vector<std::string> sentences = options.translate;
  if (!options.translate_file.empty()) sentences = lines_of(options.translate_file);
  std::set<std::string> unknown;
  for (const std::string& translation : translate(translator, sentences, options.search, &unknown))
    std::cout << translation << '\n';
  warn(unknown);
  if (!options.map.empty())
    training::write_file(options.map, attention_map_svg(look_of(translator, sentences.front(), options.search)));
}

}  // namespace translation
