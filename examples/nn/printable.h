// Text from anywhere, as a terminal or a message can show it.
#pragma once

#include <string>
#include <string_view>

namespace nn {

/// UTF-8 with U+FFFD for each byte that is none, and a blank for each control character and each end of a line: one
/// could move the cursor or change the terminal, the other begin a line that looks like another message.
std::string as_line(std::string_view bytes);

/// The same, but line feeds and tabs stay.
std::string as_text(std::string_view bytes);

/// The beginning of as_line() where that is long: 60 characters.
std::string shown(std::string_view bytes);

/// shown() in quotes.
std::string in_quotes(std::string_view bytes);

}  // namespace nn
