// The common style of all pictures that benchmarks and examples draw, for light and dark screens.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace display {

/// The colours of one theme. Text has a contrast of at least 4.5 against the paper, and shapes of at least 3 (WCAG
/// 2.1). The series' colours differ by 25 or more in CIE Lab, also as seen with any of the three kinds of colour
/// blindness. chart_test.cpp checks both.
struct Theme {
  std::string_view paper, ink, faint, grid, mark;
  std::array<std::string_view, 6> series;
  std::string_view none, full;  ///< ends of the colour scale of weights
};

inline constexpr Theme kLight{"#ffffff", "#1f2933", "#5b6773",
                              "#dde2e7", "#c0271b", {"#8a9099", "#1585e8", "#97300a", "#0e4038", "#6a2c84", "#bf8500"},
                              "#f7f9f6", "#0b3b6b"};
inline constexpr Theme kDark{"#15191e", "#e6eaee", "#9aa7b4",
                             "#333c45", "#ff7b72", {"#848a92", "#a9d3fa", "#f6663d", "#3ce79d", "#b868cf", "#fde43a"},
                             "#1c2229", "#a9d3fa"};

/// Common fonts, then fonts with Chinese characters and Arabic letters.
inline constexpr const char* kFonts =
    "system-ui, 'Segoe UI', 'DejaVu Sans', 'Noto Sans CJK SC', 'Noto Sans Arabic', 'WenQuanYi Zen Hei', Arial, "
    "sans-serif";

/// Returns the class that fills ('f') or strokes ('s') in the colour of a series; colours repeat after the last.
inline std::string series_class(char how, std::size_t series) {
  return std::string(1, how).append(std::to_string(series % kLight.series.size()));
}

/// Returns the class of a number in a cell of opacity `share` (0 to 1), so that its contrast is at least 4.5 in both
/// themes: dark text turns white at 0.68 on light paper, light text black at 0.48 on dark paper.
inline const char* class_on_weight(double share) {
  return share < 0.48 ? "on-low" : share < 0.68 ? "on-mid" : "on-high";
}

/// Returns the rules for the classes of a picture. They apply only to `svg` elements of class "display", because a page
/// may contain others. Rules use classes because not every program that shows SVG supports CSS variables.
///
/// paper, ink, faint, grid, mark: fill, and stroke of lines. f0 … f5 fill in a series' colour, s0 … s5 stroke in it.
/// weight: fill of a cell whose opacity is its weight, on a rectangle of class none, and the last colour of a gradient.
inline std::string style_sheet() {
  const auto rules = [](const Theme& t) {
    const auto rule = [](const std::string& of, const std::string& what) {
      return ".display " + of + '{' + what + "}\n";
    };
    const auto filled = [&](const std::string& name, std::string_view colour) {
      return rule('.' + name, std::string("fill:").append(colour));
    };
    const auto drawn = [&](const std::string& of, std::string_view colour) {
      return rule(of, std::string("stroke:").append(colour));
    };
    std::string css = filled("paper", t.paper) + filled("ink", t.ink) + filled("faint", t.faint) +
                      filled("none", t.none) + filled("weight", t.full) + drawn("text.rim", t.paper) +
                      drawn("line.grid", t.grid) + drawn("line.mark", t.mark) + drawn("line.faint", t.faint) +
                      rule("stop.weight", std::string("stop-color:").append(t.full)) + drawn(".cell", t.paper);
    for (std::size_t i = 0; i < t.series.size(); ++i)
      css += filled(series_class('f', i), t.series[i]) + drawn('.' + series_class('s', i), t.series[i]);
    return css;
  };
  return std::string(".display{font-family:") + kFonts +
         "}\n.display .rim{paint-order:stroke;stroke-width:3;stroke-linejoin:round}\n"
         ".display polyline{fill:none;stroke-linejoin:round}\n"
         ".display .on-low,.display .on-mid{fill:#000}\n.display .on-high{fill:#fff}\n" +
         rules(kLight) + "@media (prefers-color-scheme:dark){\n.display .on-low{fill:#fff}\n" +
         ".display .on-high{fill:#000}\n" + rules(kDark) + "}\n";
}

}  // namespace display
