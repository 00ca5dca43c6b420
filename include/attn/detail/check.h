// Layer 0: argument checks whose messages carry the numbers.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace attn::detail {

template <class Part>
void append(std::string& message, const Part& part) {
  if constexpr (std::is_integral_v<Part>) {
    message += std::to_string(part);
  } else if constexpr (std::is_floating_point_v<Part>) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%Lg", static_cast<long double>(part));
    message += digits;
  } else {
    message += std::string_view(part);
  }
}

/// Throws std::invalid_argument("attn: " followed by the parts) unless `condition` holds. The parts are put together
/// only when it fails.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::string message = "attn: ";
  (append(message, parts), ...);
  throw std::invalid_argument(message);
}

}  // namespace attn::detail
