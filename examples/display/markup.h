// Text inside SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace display {

/// Text as content or attribute of an element. XML has no control characters, so they become blanks.
inline std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result;
}

}  // namespace display
