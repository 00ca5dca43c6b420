#include "attention_map.h"

#include <algorithm>
#include <sstream>

#include "decimals.h"
#include "markup.h"
#include "style.h"
#include "utf8.h"

namespace translation {

namespace {

// Pixels.
constexpr int kMargin = 24, kTitle = 40, kLayerTitle = 26, kColumnLabels = 30, kGap = 28, kPerLetter = 10;
constexpr int kLegend = 30, kMinWidth = 520;  // fits the legend's line
constexpr int kLargeCell = 34, kSmallCell = 8;
constexpr int kMostWidth = 1800;  // of the cells: about a screen's width, exceeded only by hundreds of characters

struct Text {
  std::string what;
  double x, y;
  int size;
  const char* anchor = "start";
  const char* ink = "ink";
  const char* weight = "normal";
};

std::ostream& operator<<(std::ostream& out, const Text& t) {
  return out << "<text x=\"" << t.x << "\" y=\"" << t.y << "\" font-size=\"" << t.size << "\" text-anchor=\""
             << t.anchor << "\" class=\"" << t.ink << "\" font-weight=\"" << t.weight << "\" xml:space=\"preserve\">"
             << display::escaped(t.what) << "</text>\n";
}

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
  int letters(int size) const { return std::max(6, size * cell / kLargeCell); }
};

void draw_row_labels(std::ostream& out, const AttendedTranslation& attended, const Layout& layout, int layer) {
  const int x = layout.left_of(layer) - 12, cells = layout.top_of(layer) + kLayerTitle + kColumnLabels;
  for (std::size_t p = 0; p < attended.pieces.size(); ++p)
    out << Text{row_label(attended.pieces[p]), static_cast<double>(x),
                cells + (static_cast<double>(p) + 0.65) * layout.cell, layout.letters(16), "end"};
}

void draw_layer(std::ostream& out, const AttendedTranslation& attended, const Layout& layout, int layer) {
  const nn::Weights<float>& weights = attended.layers[static_cast<std::size_t>(layer)];
  const double left = layout.left_of(layer), top = layout.top_of(layer), cell = layout.cell;
  out << Text{"decoder layer " + std::to_string(layer + 1), left, top + 14, 14, "start", "ink", "bold"};
  const double cells = top + kLayerTitle + kColumnLabels;
  out << "<rect class=\"none\" x=\"" << left << "\" y=\"" << cells << "\" width=\"" << layout.columns * cell
      << "\" height=\"" << layout.rows * cell << "\"/>\n";
  for (std::size_t c = 0; c < attended.characters.size(); ++c)
    out << Text{attended.characters[c], left + (static_cast<double>(c) + 0.5) * cell, cells - 9,
                layout.letters(letters(attended.characters[c]) > 1 ? 13 : 20), "middle"};
  for (std::size_t p = 0; p < attended.pieces.size(); ++p)
    for (std::size_t c = 0; c < attended.characters.size(); ++c) {
      double weight = 0;
      for (Index h = 0; h < weights.dim(1); ++h)
        weight += static_cast<double>(weights(0, h, static_cast<Index>(p), static_cast<Index>(c)));
      weight /= static_cast<double>(weights.dim(1));
      const double x = left + static_cast<double>(c) * cell, y = cells + static_cast<double>(p) * cell;
      out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << cell << "\" height=\"" << cell
          << "\" class=\"cell weight\" fill-opacity=\"" << training::fixed(std::clamp(weight, 0.0, 1.0), 3)
          << "\"><title>" << display::escaped(row_label(attended.pieces[p])) << " : "
          << display::escaped(attended.characters[c]) << " = " << training::fixed(weight, 2) << "</title></rect>\n";
      // Smaller numbers are only clutter.
      if (weight >= 0.05 && layout.cell == kLargeCell)
        out << Text{training::fixed(weight, 2),      x + cell / 2, y + cell / 2 + 4, 11, "middle",
                    display::class_on_weight(weight)};
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

  std::ostringstream out;
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width
      << "\" height=\"" << height << "\" viewBox=\"0 0 " << width << ' ' << height << "\" class=\"display\">\n<title>"
      << display::escaped(title) << "</title>\n<style>\n"
      << display::style_sheet() << "</style>\n<rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n"
      << Text{title, kMargin, kMargin + 16, 18, "start", "ink", "bold"};
  for (int layer = 0; layer < layout.layers; ++layer) {
    if (layer == 0 || layout.stacked) draw_row_labels(out, attended, layout, layer);
    draw_layer(out, attended, layout, layer);
  }
  const char* const legend = "Each row is a piece, and its weights over the characters sum to 1. Mean of all heads.";
  out << Text{legend, kMargin, static_cast<double>(height - kMargin), 12, "start", "faint"} << "</svg>\n";
  return out.str();
}

}  // namespace translation
