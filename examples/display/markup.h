// Escaping of text for SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace display {

/// Escapes text for the content or an attribute of an element. Control characters, which XML forbids, become spaces.
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
