#include "printable.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "../transliterate/utf8.h"

namespace nn {

namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

std::string printable(std::string_view bytes, bool keeps_lines, std::size_t most) {
  std::string text;
  for (std::size_t count = 0; !bytes.empty(); ++count) {
    if (count == most) return text + "\u2026";
    const std::size_t length = transliterate::letter_length(bytes);
    const std::string_view letter = bytes.substr(0, length);
    const bool kept = keeps_lines && (letter == "\n" || letter == "\t");
    if (length == 0)
      text += "\uFFFD";
    else
      text += !kept && is_control(transliterate::code_point(letter)) ? " " : letter;
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text;
}

}  // namespace

std::string as_line(std::string_view bytes) { return printable(bytes, false, kAll); }

std::string as_text(std::string_view bytes) { return printable(bytes, true, kAll); }

std::string shown(std::string_view bytes) { return printable(bytes, false, 60); }

std::string in_quotes(std::string_view bytes) { return '"' + shown(bytes) + '"'; }

}  // namespace nn
