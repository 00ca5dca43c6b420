// Log-log charts of curves over lengths, and their growth exponents.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
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

/// Returns the exponent c of y = a * x^c, fitted by least squares of the logarithms, over points with x >= `from`.
inline double exponent(const Curve& curve, double from = 0) {
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [px, py] : curve.points) {
    if (px < from) continue;
    const double x = std::log(px), y = std::log(py);
    n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

/// Draws times over lengths as SVG.
inline std::string svg_of(const std::string& title, const std::vector<Curve>& curves) {
  constexpr double kLeft = 90, kTop = 80, kWidth = 560, kHeight = 460, kNames = 250;
  constexpr display::TextStyle kTick{11, "faint", "middle"}, kName{12};
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  for (const Curve& curve : curves)
    for (const auto& [x, y] : curve.points)
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
  y0 = std::pow(10, std::floor(std::log10(y0))), y1 = std::pow(10, std::ceil(std::log10(y1)));
  const auto at_x = [&](double x) { return kLeft + kWidth * std::log(x / x0) / std::log(x1 / x0); };
  const auto at_y = [&](double y) { return kTop + kHeight * (1 - std::log(y / y0) / std::log(y1 / y0)); };

  display::Svg svg(kLeft + kWidth + kNames, kTop + kHeight + 60, title);
  svg.text(24, 36, title, {20, "ink", "start", true});
  for (double x = x0; x <= x1 * 1.01; x *= 2) {
    svg.line(at_x(x), kTop, at_x(x), kTop + kHeight, "grid");
    const bool whole = std::fmod(x, 1024) == 0;
    svg.text(at_x(x), kTop + kHeight + 18, fixed(whole ? x / 1024 : x, 0) + (whole ? " Ki" : ""), kTick);
  }
  svg.text(kLeft + kWidth / 2, kTop + kHeight + 42, "tokens (log scale)", {12, "ink", "middle"});
  svg.text(24, kTop - 8, "time of a call (log scale)", {12});
  for (double y = y0; y <= y1 * 1.01; y *= 10) {
    svg.line(kLeft, at_y(y), kLeft + kWidth, at_y(y), "grid");
    const std::string text = y < 0.99e-3 ? fixed(y * 1e6, 0) + " µs"
                             : y < 0.99  ? fixed(y * 1e3, 0) + " ms"
                                         : fixed(y, 0) + " s";
    svg.text(kLeft - 10, at_y(y) + 4, text, {11, "faint", "end"});
  }

  // Names are placed at the ends of their curves without overlap. After six curves colours repeat, with other markers
  // and dashes.
  struct Name {
    double y, x;
    std::size_t curve;
  };
  std::vector<Name> names;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& points = curves[i].points;
    for (std::size_t p = 0; p + 1 < points.size(); ++p)
      svg.line(at_x(points[p].x), at_y(points[p].y), at_x(points[p + 1].x), at_y(points[p + 1].y),
               display::series_class('s', i), 2, i < display::kLight.series.size() ? "" : "6 3");
    for (const auto& [x, y] : points) svg.marker(at_x(x), at_y(y), display::series_class('f', i), i);
    if (!points.empty()) names.push_back({at_y(points.back().y), at_x(points.back().x), i});
  }
  std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.y < b.y; });
  double last = -1e9;
  for (Name& name : names) {
    const bool at_end = name.x > kLeft + kWidth - 1;
    if (at_end) last = name.y = std::max(name.y, last + 16);
    svg.marker(name.x + 16, name.y, display::series_class('f', name.curve), name.curve);
    svg.text(name.x + 25, name.y + 4, curves[name.curve].name + ", n^" + fixed(exponent(curves[name.curve]), 2), kName);
  }
  return svg.str();
}

}  // namespace bench
