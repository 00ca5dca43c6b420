// Curves over lengths, both axes logarithmic, and the exponents with which they grow.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "svg.h"
#include "table.h"

namespace bench {

struct Curve {
  struct Point {
    double x, y;
  };
  std::string name;
  std::vector<Point> points;
};

/// The slope of the straight line that fits the logarithms best, by least squares: c of y = a * x^c.
inline double exponent(const Curve& curve) {
  const auto n = static_cast<double>(curve.points.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [px, py] : curve.points) {
    const double x = std::log(px), y = std::log(py);
    sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

/// Times over lengths. @throws std::runtime_error if the file cannot be written.
inline void draw_curves(const std::string& path, const std::string& title, const std::vector<Curve>& curves) {
  constexpr std::array<std::string_view, 9> kColours{"#7f8c9b", "#a0522d", "#1f6fb4", "#d9a441", "#2a9d6f",
                                                     "#8e5ea2", "#c0392b", "#e07b39", "#17a2b8"};
  constexpr double kLeft = 90, kTop = 60, kWidth = 560, kHeight = 460, kNames = 210;
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  for (const Curve& curve : curves)
    for (const auto& [x, y] : curve.points)
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
  y0 = std::pow(10, std::floor(std::log10(y0))), y1 = std::pow(10, std::ceil(std::log10(y1)));
  const auto at_x = [&](double x) { return kLeft + kWidth * std::log(x / x0) / std::log(x1 / x0); };
  const auto at_y = [&](double y) { return kTop + kHeight * (1 - std::log(y / y0) / std::log(y1 / y0)); };

  Svg svg(kLeft + kWidth + kNames, kTop + kHeight + 60);
  svg.text(20, 30, title, {18, "#111", "start", true});
  for (double x = x0; x <= x1 * 1.01; x *= 2) {
    svg.line(at_x(x), kTop, at_x(x), kTop + kHeight, "#eee");
    const bool whole = std::fmod(x, 1024) == 0;
    svg.text(at_x(x), kTop + kHeight + 18, fixed(whole ? x / 1024 : x, 0) + (whole ? " Ki" : ""),
             {11, "#555", "middle"});
  }
  svg.text(kLeft + kWidth / 2, kTop + kHeight + 42, "tokens", {12, "#333", "middle"});
  for (double y = y0; y <= y1 * 1.01; y *= 10) {
    svg.line(kLeft, at_y(y), kLeft + kWidth, at_y(y), "#ddd");
    const std::string text = y < 0.99e-3 ? fixed(y * 1e6, 0) + " µs"
                             : y < 0.99  ? fixed(y * 1e3, 0) + " ms"
                                         : fixed(y, 0) + " s";
    svg.text(kLeft - 10, at_y(y) + 4, text, {11, "#555", "end"});
  }

  // Names stand at the ends of their curves, as far apart as their letters are high.
  struct Name {
    double y, x;
    std::size_t curve;
  };
  std::vector<Name> names;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& points = curves[i].points;
    const std::string_view colour = kColours[i % kColours.size()];
    for (std::size_t p = 0; p + 1 < points.size(); ++p)
      svg.line(at_x(points[p].x), at_y(points[p].y), at_x(points[p + 1].x), at_y(points[p + 1].y), colour, 2);
    for (const auto& [x, y] : points) svg.rect(at_x(x) - 2.5, at_y(y) - 2.5, 5, 5, colour, 2.5);
    if (!points.empty()) names.push_back({at_y(points.back().y), at_x(points.back().x), i});
  }
  std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.y < b.y; });
  double last = -1e9;
  for (Name& name : names) {
    const bool at_end = name.x > kLeft + kWidth - 1;
    if (at_end) last = name.y = std::max(name.y, last + 16);
    svg.text(name.x + 9, name.y + 4, curves[name.curve].name + ", n^" + fixed(exponent(curves[name.curve]), 2),
             {12, kColours[name.curve % kColours.size()], "start", true});
  }
  svg.save(path);
}

}  // namespace bench
