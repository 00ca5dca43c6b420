// Heat maps of ratios.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "svg.h"
#include "table.h"

namespace bench {

/// Ratios over two lists of sizes: ratios[row][column].
struct HeatMap {
  std::string title, row_name, column_name;
  std::vector<long> rows, columns;
  std::vector<std::vector<double>> ratios;
};

/// Draws heat maps as SVG, two per row. A ratio of 1 has the colour of the background, 8 and 1 / 8 the full strength of
/// two colours.
inline std::string svg_of(const std::string& title, const std::vector<HeatMap>& maps) {
  constexpr double kSide = 34, kLeft = 70, kTop = 50;
  constexpr display::TextStyle kSize{11, "faint", "middle"};
  double width = 0, height = 0;
  for (const HeatMap& map : maps) {
    width = std::max(width, kLeft + kSide * static_cast<double>(map.columns.size()) + 20);
    height = std::max(height, kTop + kSide * static_cast<double>(map.rows.size()) + 50);
  }
  display::Svg svg(2 * width + 20, 50 + height * static_cast<double>((maps.size() + 1) / 2), title);
  svg.text(20, 30, title, {18, "ink", "start", true});
  for (std::size_t m = 0; m < maps.size(); ++m) {
    const HeatMap& map = maps[m];
    const double left = 10 + width * static_cast<double>(m % 2) + kLeft,
                 top = 50 + height * static_cast<double>(m / 2) + kTop;
    const auto middle = [&](double from, std::size_t i) { return from + kSide * (static_cast<double>(i) + 0.5); };
    svg.text(left, top - 28, map.title, {13, "ink", "start", true});
    for (std::size_t c = 0; c < map.columns.size(); ++c)
      svg.text(middle(left, c), top - 6, std::to_string(map.columns[c]), kSize);
    svg.text(left - 8, top - 6, map.row_name + " \\ " + map.column_name, {11, "ink", "end"});
    for (std::size_t r = 0; r < map.rows.size(); ++r) {
      svg.text(left - 8, middle(top, r) + 4, std::to_string(map.rows[r]), {11, "faint", "end"});
      for (std::size_t c = 0; c < map.columns.size(); ++c) {
        const double ratio = map.ratios[r][c];
        const double strength = std::min(std::abs(std::log2(ratio)) / 3, 1.0);
        svg.rect(left + kSide * static_cast<double>(c), top + kSide * static_cast<double>(r), kSide - 1, kSide - 1,
                 display::series_class('f', ratio > 1 ? 1 : 2), 0, 0.6 * strength);
        svg.text(middle(left, c), middle(top, r) + 4, fixed(ratio, ratio < 9.95 ? 1 : 0), {11, "ink", "middle"});
      }
    }
  }
  return svg.str();
}

}  // namespace bench
