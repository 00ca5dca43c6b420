// Text as Unicode letters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace transliterate {

/// The code points of a UTF-8 text, each as a string of its own.
/// @throws std::invalid_argument with the offset of the first byte that is not UTF-8 (overlong forms, surrogates and
/// code points above U+10FFFF are not).
std::vector<std::string> letters_of(std::string_view text);

/// The bytes of the code point at the beginning of a text; 0 if the text is empty or none is there.
std::size_t letter_length(std::string_view text);

/// The number of a code point that letters_of() returned.
char32_t code_point(std::string_view letter);

/// The name of a code point: "U+0622".
std::string code_point_name(char32_t code);

/// Whether a letter is one of the blanks of Unicode, line ends included.
bool is_space(std::string_view letter);

}  // namespace transliterate
