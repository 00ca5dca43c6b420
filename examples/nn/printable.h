// Untrusted text, made safe for terminals and messages.
#pragma once

#include <string>
#include <string_view>

namespace nn {

/// Returns UTF-8 as one line. Invalid bytes become U+FFFD. Control characters, which could move the cursor or change
/// the terminal, become spaces; so do line ends, after which a second message could be faked.
std::string as_line(std::string_view bytes);

/// Like as_line(), but keeps line feeds and tabs.
std::string as_text(std::string_view bytes);

/// as_line(), truncated to its first 60 characters.
std::string shown(std::string_view bytes);

/// shown() in quotes.
std::string in_quotes(std::string_view bytes);

}  // namespace nn
