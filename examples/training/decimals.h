// Formatting of numbers.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

namespace training {

/// Returns a number with `digits` digits after the decimal point: "1.870".
inline std::string fixed(double x, int digits) {
  char text[350];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

/// Returns a number that is not negative with thousands separators: 1,234,567.
inline std::string grouped(std::ptrdiff_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

}  // namespace training
