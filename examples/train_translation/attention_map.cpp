#include "attention_map.h"

#include <algorithm>

#include "decimals.h"
#include "svg.h"
#include "utf8.h"

namespace translation {

namespace {

// Pixels.
constexpr int kMargin = 24, kTitle = 40, kLayerTitle = 26, kColumnLabels = 30, kGap = 28, kPerLetter = 10;
constexpr int kLegend = 30, kMinWidth = 520;  // fits the legend's line
constexpr int kLargeCell = 34, kSmallCell = 8;
constexpr int kMostWidth = 1800;  // of the cells: about a screen's width, exceeded only by hundreds of characters

/// Returns a piece as a row label, without the space before a word.
std::string row_label(const std::string& piece) {
  return piece.size() > 1 && piece.front() == ' ' ? piece.substr(1) : piece;
}

int letters(const std::string& text) { return static_cast<int>(training::letters_of(text).size()); }

/// Positions of the layers: side by side, or stacked with smaller cells if they would be too wide.
struct Layout {
  int columns, rows, layers;
  int labels;  // width of the row labels
  bool stacked = layers * (columns * kLargeCell + kGap) > kMostWidth;
  int cell = stacked ? std::clamp(kMostWidth / columns, kSmallCell, kLargeCell) : kLargeCell;

  int layer_height() const { return kLayerTitle + kColumnLabels + rows * cell; }
  int width() const { return labels + (stacked ? 1 : layers) * (columns * cell + kGap); }
  int height() const { return stacked ? layers * (layer_height() + kGap) : layer_height(); }
  int left_of(int layer) const { return kMargin + labels + (stacked ? 0 : layer * (columns * cell + kGap)); }
  int top_of(int layer) const { return kMargin + kTitle + (stacked ? layer * (layer_height() + kGap) : 0); }
  /// Font size for a text whose size is `size` beside large cells.
  double letters(int size) const { return std::max(6, size * cell / kLargeCell); }
};

void draw_row_labels(display::Svg& svg, const AttendedTranslation& attended, const Layout& layout, int layer) {
  const int x = layout.left_of(layer) - 12, cells = layout.top_of(layer) + kLayerTitle + kColumnLabels;
  for (std::size_t p = 0; p < attended.pieces.size(); ++p)
    svg.text(x, cells + (static_cast<double>(p) + 0.65) * layout.cell, row_label(attended.pieces[p]),
             {layout.letters(16), "ink", "end"});
}

void draw_layer(display::Svg& svg, const AttendedTranslation& attended, const Layout& layout, int layer) {
  const nn::Weights<float>& weights = attended.layers[static_cast<std::size_t>(layer)];
  const double left = layout.left_of(layer), top = layout.top_of(layer), cell = layout.cell;
  svg.text(left, top + 14, "decoder layer " + std::to_string(layer + 1), {14, "ink", "start", true});
  const double cells = top + kLayerTitle + kColumnLabels;
  svg.rect(left, cells, layout.columns * cell, layout.rows * cell, "none");
  for (std::size_t c = 0; c < attended.characters.size(); ++c)
    svg.text(left + (static_cast<double>(c) + 0.5) * cell, cells - 9, attended.characters[c],
             {layout.letters(letters(attended.characters[c]) > 1 ? 13 : 20), "ink", "middle"});
  for (std::size_t p = 0; p < attended.pieces.size(); ++p)
    for (std::size_t c = 0; c < attended.characters.size(); ++c) {
      double weight = 0;
      for (Index h = 0; h < weights.dim(1); ++h)
        weight += static_cast<double>(weights(0, h, static_cast<Index>(p), static_cast<Index>(c)));
      weight /= static_cast<double>(weights.dim(1));
      const double x = left + static_cast<double>(c) * cell, y = cells + static_cast<double>(p) * cell;
      const std::string number = training::fixed(weight, 2);
      svg.cell(x, y, cell, std::clamp(weight, 0.0, 1.0),
               row_label(attended.pieces[p]) + " : " + attended.characters[c] + " = " + number);
      // Smaller numbers are only clutter.
      if (weight >= 0.05 && layout.cell == kLargeCell)
        svg.text(x + cell / 2, y + cell / 2 + 4, number,
                 {11, display::class_on_weight(weight), "middle", false, /*rim=*/false});
    }
}

/// Returns the beginning of a sentence, for the title.
std::string beginning(const std::string& sentence) {
  constexpr std::size_t kMost = 60;
  std::string text;
  std::size_t count = 0;
  for (const std::string& letter : training::letters_of(sentence)) {
    if (count++ == kMost) return text + "\u2026";
    text += letter;
  }
  return text;
}

}  // namespace

std::string attention_map_svg(const AttendedTranslation& attended) {
  int longest = 0;
  for (const std::string& piece : attended.pieces) longest = std::max(longest, letters(row_label(piece)));
  const Layout layout{static_cast<int>(attended.characters.size()), static_cast<int>(attended.pieces.size()),
                      static_cast<int>(attended.layers.size()), longest * kPerLetter + 12};
  const std::string sentence = beginning(attended.sentence), translation = beginning(attended.translation);
  const std::string title = sentence + " \u2192 " + translation;
  const int title_width = letters(sentence) * 20 + letters(translation) * kPerLetter + 30;
  const int width = 2 * kMargin + std::max({layout.width(), title_width, kMinWidth});
  const int height = kMargin + kTitle + layout.height() + kLegend + kMargin;

  display::Svg svg(width, height, title);
  svg.text(kMargin, kMargin + 16, title, {18, "ink", "start", true});
  for (int layer = 0; layer < layout.layers; ++layer) {
    if (layer == 0 || layout.stacked) draw_row_labels(svg, attended, layout, layer);
    draw_layer(svg, attended, layout, layer);
  }
  svg.text(kMargin, height - kMargin,
           "Each row is a piece, and its weights over the characters sum to 1. Mean of all heads.", {12, "faint"});
  return svg.str();
}

}  // namespace translation
