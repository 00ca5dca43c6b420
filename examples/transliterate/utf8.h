// Splits UTF-8 text into code points, called letters here.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace transliterate {

/// Returns the code points of a UTF-8 text, each as its own string.
/// @throws std::invalid_argument with the offset of the first byte that is not valid UTF-8 (overlong forms, surrogates
/// and code points above U+10FFFF are not).
std::vector<std::string> letters_of(std::string_view text);

/// Returns the number of bytes of the code point at the beginning of a text; 0 if the text is empty or does not begin
/// with a valid one.
std::size_t letter_length(std::string_view text);

/// Returns the numeric value of a code point that letters_of() returned.
char32_t code_point(std::string_view letter);

/// Returns the name of a code point: "U+0622".
std::string code_point_name(char32_t code);

/// Whether a letter is white space, line ends included.
bool is_space(std::string_view letter);

}  // namespace transliterate
