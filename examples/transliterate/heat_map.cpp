#include "heat_map.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "svg.h"
#include "utf8.h"

namespace transliterate {

namespace {

// Pixels. A letter fits beside a small cell, a number with two decimals inside a large one.
constexpr int kLargeCell = 40, kSmallCell = 22;
constexpr int kMargin = 24, kRowLabels = 52, kColumnLabels = 28, kPanelTitle = 26, kGap = 30, kColorBar = 84;
constexpr int kMinWidth = 520;  // fits the explanation in a few lines

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", x);
  return text;
}

/// Whether a character is invisible; among these are characters that XML forbids.
bool is_invisible(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA1) || c == 0xAD || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c & 0xFFFE) == 0xFFFE;
}

/// Whether a character is a Latin or Arabic combining mark.
bool is_mark(char32_t c) {
  return (c >= 0x300 && c <= 0x36F) || (c >= 0x610 && c <= 0x61A) || (c >= 0x64B && c <= 0x65F) || c == 0x670 ||
         (c >= 0x6D6 && c <= 0x6DC);
}

/// Replaces invisible characters except spaces, because a title may be any text.
std::string visible(const std::string& text) {
  std::string result;
  for (const std::string& letter : letters_of(text))
    result += letter != " " && is_invisible(code_point(letter)) ? "\uFFFD" : letter;
  return result;
}

/// Returns a letter as the label of a row or column, visible even if the letter alone is not.
std::string label_of(const std::string& letter) {
  if (letter == "</s>") return "end";
  const bool single = letters_of(letter).size() == 1;
  const char32_t c = code_point(letter);
  if (single && is_invisible(c)) return code_point_name(c);
  return single && is_mark(c) ? "\u25CC" + letter : letter;
}

/// Splits a text at spaces into lines of at most `width` pixels.
std::vector<std::string> wrapped(const std::string& text, int width, int font_size) {
  const auto fits = static_cast<std::size_t>(width / (0.56 * font_size));  // mean width of a Latin letter, in ems
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (lines.empty() || letters_of(lines.back()).size() + 1 + letters_of(word).size() > fits)
      lines.push_back(word);
    else
      lines.back() += ' ' + word;
  }
  return lines;
}

/// Returns the weight at the dark end of the scale: the largest of all panels, rounded up to a fifth, so that its
/// quarters, the ticks of the colour bar, have two decimals.
double scale_end(const std::vector<Panel>& panels) {
  float greatest = 0;
  for (const Panel& panel : panels)
    if (panel.weights.size() > 0) greatest = std::max(greatest, panel.weights.matrix().maxCoeff());
  const double rounding_error = 1e-6;  // a weight of 1 may be slightly larger
  return std::clamp(std::ceil(static_cast<double>(greatest) * 5 - rounding_error) / 5, 0.2, 1.0);
}

void draw_panel(display::Svg& svg, const Panel& panel, double x, double y, int cell, double scale) {
  svg.text(x + kRowLabels, y + 14, visible(panel.title), {13, "ink", "start", true});
  const double left = x + kRowLabels, top = y + kPanelTitle + kColumnLabels, half = cell / 2.0;
  svg.rect(left, top, static_cast<double>(panel.target.size()) * cell, static_cast<double>(panel.source.size()) * cell,
           "none");
  const double letter_size = cell == kLargeCell ? 20 : 15;
  const auto size_of = [&](const std::string& label) { return letters_of(label).size() > 2 ? 11 : letter_size; };

  for (std::size_t t = 0; t < panel.target.size(); ++t) {
    const std::string label = label_of(panel.target[t]);
    svg.text(left + static_cast<double>(t) * cell + half, top - 9, label,
             {size_of(label), label == "end" ? "faint" : "ink", "middle"});
  }
  for (std::size_t s = 0; s < panel.source.size(); ++s) {
    const std::string label = label_of(panel.source[s]);
    svg.text(left - 10, top + static_cast<double>(s) * cell + half + letter_size * 0.35, label,
             {size_of(label), "ink", "end"});
  }

  for (std::size_t s = 0; s < panel.source.size(); ++s)
    for (std::size_t t = 0; t < panel.target.size(); ++t) {
      const double w = static_cast<double>(panel.weights(static_cast<attn::Index>(t), static_cast<attn::Index>(s)));
      const double cx = left + static_cast<double>(t) * cell, cy = top + static_cast<double>(s) * cell;
      const double share = std::clamp(w / scale, 0.0, 1.0);
      svg.cell(cx, cy, cell, share, label_of(panel.source[s]) + " : " + label_of(panel.target[t]) + " = " + number(w));
      // Numbers that would print as 0.00 are only clutter.
      if (cell == kLargeCell && w >= 0.01)
        svg.text(cx + half, cy + half + 4, number(w),
                 {11, display::class_on_weight(share), "middle", false, /*rim=*/false});
    }
}

void draw_color_bar(display::Svg& svg, double x, double y, double height, double scale) {
  constexpr int kWidth = 16, kTicks = 5;
  svg.text(x, y - 10, "weight", {12, "faint"});
  svg.weight_scale(x, y, kWidth, height);
  for (int i = 0; i < kTicks; ++i) {
    const double share = static_cast<double>(i) / (kTicks - 1), ty = y + height * (1 - share);
    svg.line(x + kWidth, ty, x + kWidth + 5, ty, "faint");
    svg.text(x + kWidth + 9, ty + 4, number(share * scale), {12, "faint"});
  }
}

}  // namespace

std::string heat_map_svg(const std::string& title, const std::string& explanation, const std::vector<Panel>& panels) {
  std::size_t sources = 1, targets = 1, title_letters = 0;
  for (const Panel& panel : panels) {
    const auto rows = static_cast<attn::Index>(panel.target.size()),
               columns = static_cast<attn::Index>(panel.source.size());
    if (panel.weights.dim(0) != rows || panel.weights.dim(1) != columns)
      throw std::invalid_argument("heat map: weights are " + std::to_string(panel.weights.dim(0)) + " x " +
                                  std::to_string(panel.weights.dim(1)) + " for " + std::to_string(rows) +
                                  " target and " + std::to_string(columns) + " source letters");
    sources = std::max(sources, panel.source.size());
    targets = std::max(targets, panel.target.size());
    title_letters = std::max(title_letters, letters_of(panel.title).size());
  }

  const int cell = panels.size() <= 2 ? kLargeCell : kSmallCell;
  const int across = panels.size() <= 3 ? std::max(1, static_cast<int>(panels.size())) : 4;
  const int down = (static_cast<int>(panels.size()) + across - 1) / across;
  const int panel_width = kRowLabels + std::max(static_cast<int>(targets) * cell, static_cast<int>(title_letters) * 8);
  const int panel_height = kPanelTitle + kColumnLabels + static_cast<int>(sources) * cell;
  const int grid_width = across * panel_width + (across - 1) * kGap;
  const int grid_height = down * panel_height + (down - 1) * kGap;
  const int title_width = static_cast<int>(letters_of(title).size()) * 11;  // 17 px, bold
  const int width = 2 * kMargin + std::max({kMinWidth - 2 * kMargin, grid_width + kGap + kColorBar, title_width});

  constexpr int kTextSize = 12, kLine = 17;
  const std::vector<std::string> lines = wrapped(explanation, width - 2 * kMargin, kTextSize);
  const int grid_top = kMargin + 26 + static_cast<int>(lines.size()) * kLine + 14;
  const int height = grid_top + grid_height + kMargin;
  const double scale = scale_end(panels);

  display::Svg svg(width, height, visible(title));
  svg.text(kMargin, kMargin + 14, visible(title), {17, "ink", "start", true});
  for (std::size_t i = 0; i < lines.size(); ++i)
    svg.text(kMargin, kMargin + 26.0 + 14 + static_cast<double>(i) * kLine, lines[i], {kTextSize, "faint"});

  for (std::size_t i = 0; i < panels.size(); ++i) {
    const int column = static_cast<int>(i) % across, row = static_cast<int>(i) / across;
    draw_panel(svg, panels[i], kMargin + column * (panel_width + kGap), grid_top + row * (panel_height + kGap), cell,
               scale);
  }
  const double bar_top = grid_top + kPanelTitle + kColumnLabels;
  draw_color_bar(svg, kMargin + grid_width + kGap, bar_top, std::min(grid_top + grid_height - bar_top, 260.0), scale);
  return svg.str();
}

}  // namespace transliterate
