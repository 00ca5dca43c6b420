// Formatting of durations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace display {

/// Returns a duration as text: "59 s", "3:07", "1:02:03".
inline std::string duration_text(double seconds) {
  const auto all = static_cast<long long>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  char text[32];
  if (all < 60)
    std::snprintf(text, sizeof text, "%lld s", all);
  else if (all < 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld", all / 60, all % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", all / 3600, all / 60 % 60, all % 60);
  return text;
}

}  // namespace display
