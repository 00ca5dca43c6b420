#include "use.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "attention_map.h"
#include "files.h"
#include "new_file.h"
#include "printable.h"
#include "utf8.h"

namespace translation {

namespace {

/// Limit on the length of a sentence. Sentences are far shorter; the limit bounds the memory and time that a line can
/// take.
constexpr std::size_t kMaxCharacters = 1000;

void check_sentence(const std::string& where, const std::string& sentence) {
  std::size_t length = 0;
  try {
    length = training::letters_of(sentence).size();
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(where + ": " + error.what());
  }
  if (length > kMaxCharacters)
    throw std::invalid_argument(where + ": " + std::to_string(length) + " characters, but at most " +
                                std::to_string(kMaxCharacters) + " are allowed");
}

/// Reads all of standard input or of a pipe, up to the size limit of files.
std::string read_stream(std::istream& in, const std::string& name) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  std::string text;
  for (char part[65536]; in.read(part, sizeof part), in.gcount() > 0;) {
    text.append(part, static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMost) throw nn::FileError(name + ": has more than " + std::to_string(kMost) + " bytes");
  }
  return text;
}

std::string read_sentences(const std::string& file) {
  if (file == "-") return read_stream(std::cin, "standard input");
  if (!std::filesystem::is_fifo(file)) return training::read_file(file);
  std::ifstream in(file, std::ios::binary);
  if (!in) throw nn::FileError(file + ": cannot be opened");
  return read_stream(in, file);
}

/// Returns the lines of a file. Invalid ones are returned empty; `faults` receives their errors.
std::vector<std::string> lines_of(const std::string& file, std::vector<std::string>& faults) {
  std::vector<std::string> lines;
  const std::string bytes = read_sentences(file);
  for (std::string_view text = training::without_byte_order_mark(bytes); !text.empty();) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    if (line.ends_with('\r')) line.pop_back();
    try {
      check_sentence(file + ": line " + std::to_string(lines.size() + 1), line);
    } catch (const std::invalid_argument& error) {
      faults.push_back(error.what());
      line.clear();
    }
    lines.push_back(std::move(line));
    text.remove_prefix(std::min(end + 1, text.size()));
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

void print_lines(const Translator& translator, const std::vector<std::string>& sentences, const Options& options) {
  std::set<std::string> unknown;
  for (const std::string& translation : translate(translator, sentences, options.search, &unknown))
    std::cout << translation << '\n';
  warn(unknown);
}

}  // namespace

void check_sentences(const Options& options) {
  const auto name = [](std::size_t i) { return "sentence " + std::to_string(i + 1) + " of --translate"; };
  for (std::size_t i = 0; i < options.translate.size(); ++i) check_sentence(name(i), options.translate[i]);
  if (!options.map.empty() && characters_of(options.translate.front()).empty())
    throw std::invalid_argument(name(0) + ": there is nothing in it that --map could draw");
}

void print_translations(const Translator& translator, const Options& options) {
  print_lines(translator, options.translate, options);
  if (!options.map.empty())
    training::write_file(
        options.map, attention_map_svg(attended_translation(translator, options.translate.front(), options.search)));
}

int use(const Translator& translator, const Options& options) {
  if (options.translate_file.empty()) {
    check_sentences(options);
    training::require_writable({{"--map", options.map}}, {{"--model", options.model}}, "");
    print_translations(translator, options);
    return EXIT_SUCCESS;
  }
  std::vector<std::string> faults;
  const std::vector<std::string> lines = lines_of(options.translate_file, faults);
  print_lines(translator, lines, options);
  for (const std::string& fault : faults) std::cerr << "train_translation: " << nn::as_line(fault) << '\n';
  return faults.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace translation
