// Formatting of numbers.
#pragma once

#include <cstdio>
#include <string>

namespace training {

/// Returns a number with `digits` digits after the decimal point: "1.870".
inline std::string fixed(double x, int digits) {
  char text[350];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

}  // namespace training
