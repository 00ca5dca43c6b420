// Text from anywhere, as a terminal or a message can show it.
#pragma once

#include <string>
#include <string_view>

namespace nn {

/// UTF-8 as a line: U+FFFD stands for each byte that is no UTF-8, and a blank for each control character, which could
/// move the cursor or change the terminal, and for each end of a line, behind which another message could be faked.
std::string as_line(std::string_view bytes);

/// as_line() that keeps line feeds and tabs.
std::string as_text(std::string_view bytes);

/// as_line(), cut down to its first 60 characters if it is longer.
std::string shown(std::string_view bytes);

/// shown() in quotes.
std::string in_quotes(std::string_view bytes);

}  // namespace nn
