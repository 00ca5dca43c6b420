#include "utf8.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

namespace transliterate {

namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Returns the number of bytes of a code point whose first byte is `lead`, 0 for a byte that cannot be first.
std::size_t length_from_lead(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC0 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF8) return 4;
  return 0;
}

/// Smallest code point that needs this many bytes; smaller ones are overlong forms.
constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};

}  // namespace

std::size_t letter_length(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t length = length_from_lead(byte_at(text, 0));
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte_at(text, i) & 0xC0) != 0x80) return 0;
  const char32_t code = code_point(text.substr(0, length));
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code >= kLeast[length] && code <= 0x10FFFF && !surrogate ? length : 0;
}

std::vector<std::string> letters_of(std::string_view text) {
  std::vector<std::string> letters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = letter_length(text.substr(at));
    if (length == 0) throw std::invalid_argument("byte " + std::to_string(at + 1) + " is not valid UTF-8");
    letters.emplace_back(text.substr(at, length));
    at += length;
  }
  return letters;
}

char32_t code_point(std::string_view letter) {
  if (letter.empty()) return 0;
  const unsigned lead = byte_at(letter, 0);
  char32_t code = letter.size() == 1 ? lead : lead & (0x7Fu >> letter.size());
  for (std::size_t i = 1; i < letter.size(); ++i) code = (code << 6) | (byte_at(letter, i) & 0x3Fu);
  return code;
}

std::string code_point_name(char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", static_cast<unsigned>(code));
  return text;
}

bool is_space(std::string_view letter) {
  const char32_t code = code_point(letter);
  return code == 0x20 || (code >= 0x09 && code <= 0x0D) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

}  // namespace transliterate
