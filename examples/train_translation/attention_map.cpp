#include "attention_map.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "markup.h"
#include "utf8.h"

namespace translation {

namespace {

// Pixels.
constexpr int kCell = 34, kMargin = 24, kTitle = 40, kLayerTitle = 26, kColumnLabels = 30, kGap = 28, kPerLetter = 10;
constexpr int kLegend = 30, kMinWidth = 500;  // room for the legend's line

constexpr const char* kFonts =
    "'Noto Sans CJK SC','Source Han Sans SC','PingFang SC','Microsoft YaHei','WenQuanYi Micro Hei','DejaVu "
    "Sans',sans-serif";
constexpr const char* kInk = "#1f2933";

struct Color {
  double red, green, blue;
};

/// Paper for 0, dark green for 1: brightness falls evenly.
constexpr Color kPaper{247, 249, 246}, kDark{8, 74, 62};

std::string color_of(double weight) {
  const auto mixed = [&](double from, double to) {
    return static_cast<unsigned>(std::lround(from + std::clamp(weight, 0.0, 1.0) * (to - from))) & 0xFFu;
  };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mixed(kPaper.red, kDark.red), mixed(kPaper.green, kDark.green),
                mixed(kPaper.blue, kDark.blue));
  return text;
}

std::string two_digits(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", x);
  return text;
}

struct Text {
  std::string what;
  double x, y;
  int size;
  const char* anchor = "start";
  const char* fill = kInk;
  const char* weight = "normal";
};

std::ostream& operator<<(std::ostream& out, const Text& t) {
  return out << "<text x=\"" << t.x << "\" y=\"" << t.y << "\" font-size=\"" << t.size << "\" text-anchor=\""
             << t.anchor << "\" fill=\"" << t.fill << "\" font-weight=\"" << t.weight << "\" xml:space=\"preserve\">"
             << training::escaped(t.what) << "</text>\n";
}

/// A piece as the label of its row: a blank before a word needs no place of its own.
std::string row_label(const std::string& piece) {
  return piece.size() > 1 && piece.front() == ' ' ? piece.substr(1) : piece;
}

int letters(const std::string& text) { return static_cast<int>(training::letters_of(text).size()); }

void draw_layer(std::ostream& out, const Look& look, const nn::Weights<float>& weights, const std::string& title,
                double left, double top) {
  out << Text{title, left, top + 14, 14, "start", kInk, "bold"};
  const double cells = top + kLayerTitle + kColumnLabels;
  for (std::size_t c = 0; c < look.characters.size(); ++c)
    out << Text{look.characters[c], left + (static_cast<double>(c) + 0.5) * kCell, cells - 9,
                letters(look.characters[c]) > 1 ? 13 : 20, "middle"};
  for (std::size_t p = 0; p < look.pieces.size(); ++p)
    for (std::size_t c = 0; c < look.characters.size(); ++c) {
      double weight = 0;
      for (Index h = 0; h < weights.dim(1); ++h)
        weight += static_cast<double>(weights(0, h, static_cast<Index>(p), static_cast<Index>(c)));
      weight /= static_cast<double>(weights.dim(1));
      const double x = left + static_cast<double>(c) * kCell, y = cells + static_cast<double>(p) * kCell;
      out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << kCell << "\" height=\"" << kCell << "\" fill=\""
          << color_of(weight) << "\" stroke=\"#ffffff\"><title>" << training::escaped(row_label(look.pieces[p]))
          << " : " << training::escaped(look.characters[c]) << " = " << two_digits(weight) << "</title></rect>\n";
      // Smaller ones only clutter. From the middle of the scale on, white has the better contrast.
      if (weight >= 0.05)
        out << Text{
            two_digits(weight), x + kCell / 2.0, y + kCell / 2.0 + 4, 11, "middle", weight >= 0.5 ? "#ffffff" : kInk};
    }
}

}  // namespace

std::string attention_map_svg(const Look& look) {
  const auto columns = static_cast<int>(look.characters.size()), rows = static_cast<int>(look.pieces.size()),
             layers = static_cast<int>(look.layers.size());
  int longest = 0;
  for (const std::string& piece : look.pieces) longest = std::max(longest, letters(row_label(piece)));
  const int labels = longest * kPerLetter + 12;
  const std::string title = look.sentence + " \u2192 " + look.translation;
  const int title_width = letters(look.sentence) * 20 + letters(look.translation) * kPerLetter + 30;
  const int width = 2 * kMargin + std::max({labels + layers * (columns * kCell + kGap), title_width, kMinWidth});
  const int top = kMargin + kTitle, cells = top + kLayerTitle + kColumnLabels;
  const int height = cells + rows * kCell + kLegend + kMargin;

  std::ostringstream out;
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width
      << "\" height=\"" << height << "\" viewBox=\"0 0 " << width << ' ' << height << "\" font-family=\"" << kFonts
      << "\">\n<title>" << training::escaped(title)
      << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      << Text{title, kMargin, kMargin + 16, 18, "start", kInk, "bold"};
  for (int p = 0; p < rows; ++p)
    out << Text{row_label(look.pieces[static_cast<std::size_t>(p)]), static_cast<double>(kMargin + labels - 12),
                cells + (p + 0.5) * kCell + 5, 16, "end"};
  for (int i = 0; i < layers; ++i)
    draw_layer(out, look, look.layers[static_cast<std::size_t>(i)], "decoder layer " + std::to_string(i + 1),
               kMargin + labels + i * (columns * kCell + kGap), top);
  out << Text{"Each row adds up to 1: how much a piece looked at each character. Mean of all heads.",
              kMargin,
              static_cast<double>(height - kMargin),
              12,
              "start",
              "#66727f"};
  out << "</svg>\n";
  return out.str();
}

}  // namespace translation
