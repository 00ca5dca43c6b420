// Numbers as text.
#pragma once

#include <cstdio>
#include <string>

namespace training {

/// A number with `digits` digits behind the point: "1.870".
inline std::string fixed(double x, int digits) {
  char text[350];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

}  // namespace training
