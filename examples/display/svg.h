// The few SVG elements that a chart needs.
#pragma once

#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "markup.h"
#include "style.h"

namespace display {

struct TextStyle {
  double size = 12;
  std::string_view ink = "ink";       ///< a class of style_sheet(): ink or faint
  std::string_view anchor = "start";  ///< start, middle or end: the part of the text at x
  bool bold = false;
  bool rim = true;  ///< a rim in the paper's colour, which keeps text legible on lines
};

/// Returns an upper estimate of a text's width in pixels: that of DejaVu Sans, which is wider than most fonts.
inline double text_width(std::string_view text, const TextStyle& style = {}) {
  double letters = 0;
  for (const char c : text) letters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return letters * style.size * (style.bold ? 0.73 : 0.62);
}

struct Point {
  double x, y;
};

/// An SVG drawing in the common style; x to the right, y down, in pixels. Colours are classes of style_sheet().
class Svg {
 public:
  /// `name`: a further class of the drawing, for the rules of `style`, because a page may contain other pictures.
  Svg(double width, double height, std::string_view title, std::string_view name = "", std::string_view style = "") {
    body_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"display" << (name.empty() ? "" : " ") << name
          << "\" role=\"img\" viewBox=\"0 0 " << width << ' ' << height << "\" width=\"" << width << "\" height=\""
          << height << "\">\n<title>" << escaped(title) << "</title>\n<style>\n"
          << style_sheet() << style << "</style>\n";
    rect(0, 0, width, height, "paper");
  }

  void rect(double x, double y, double w, double h, std::string_view colour, double radius = 0, double opacity = 1) {
    body_ << "<rect class=\"" << colour << "\" x=\"" << x << "\" y=\"" << y << "\" width=\"" << w << "\" height=\"" << h
          << '"';
    if (radius > 0) body_ << " rx=\"" << radius << '"';
    if (opacity < 1) body_ << " fill-opacity=\"" << opacity << '"';
    body_ << "/>\n";
  }

  /// Draws a cell whose opacity is its weight, relative to the largest; a pointer over it shows `tooltip`.
  void cell(double x, double y, double side, double share, std::string_view tooltip) {
    body_ << "<rect class=\"cell weight\" x=\"" << x << "\" y=\"" << y << "\" width=\"" << side << "\" height=\""
          << side << "\" fill-opacity=\"" << std::round(share * 1e3) / 1e3 << "\"><title>" << escaped(tooltip)
          << "</title></rect>\n";
  }

  /// Draws the scale of cells' colours: a weight of 0 at the bottom, the largest at the top.
  void weight_scale(double x, double y, double width, double height) {
    body_ << "<defs><linearGradient id=\"scale\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\"><stop class=\"weight\" "
             "offset=\"0\" stop-opacity=\"0\"/><stop class=\"weight\" offset=\"1\"/></linearGradient></defs>\n";
    rect(x, y, width, height, "none");
    body_ << "<rect fill=\"url(#scale)\" x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\""
          << height << "\"/>\n";
  }

  void polyline(std::string_view colour, const std::vector<Point>& points) {
    if (points.empty()) return;
    body_ << "<polyline class=\"" << colour << "\" points=\"";
    for (std::size_t i = 0; i < points.size(); ++i) body_ << (i > 0 ? " " : "") << points[i].x << ',' << points[i].y;
    body_ << "\"/>\n";
  }

  void circle(double x, double y, double radius, std::string_view colour) {
    body_ << "<circle class=\"" << colour << "\" cx=\"" << x << "\" cy=\"" << y << "\" r=\"" << radius << "\"/>\n";
  }

  /// Draws a line. `dashes` is as in stroke-dasharray; empty for a solid line.
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width = 1,
            std::string_view dashes = "") {
    body_ << "<line class=\"" << colour << "\" x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2
          << "\" stroke-width=\"" << width << '"';
    if (!dashes.empty()) body_ << " stroke-dasharray=\"" << dashes << '"';
    body_ << "/>\n";
  }

  /// Draws a mark of about 8 pixels around (x, y): a circle, square, diamond or triangle, by `shape` modulo 4.
  void marker(double x, double y, std::string_view colour, std::size_t shape) {
    if (shape % 4 == 0) return circle(x, y, 4, colour);
    const auto corner = [&](double dx, double dy) { body_ << ' ' << x + dx << ',' << y + dy; };
    body_ << "<polygon class=\"" << colour << "\" points=\"";
    if (shape % 4 == 1) corner(-3.5, -3.5), corner(3.5, -3.5), corner(3.5, 3.5), corner(-3.5, 3.5);
    if (shape % 4 == 2) corner(0, -5), corner(5, 0), corner(0, 5), corner(-5, 0);
    if (shape % 4 == 3) corner(0, -4.5), corner(4.8, 3.8), corner(-4.8, 3.8);
    body_ << "\"/>\n";
  }

  /// Writes text with its baseline at y, turned by `degrees` clockwise around (x, y).
  void text(double x, double y, std::string_view what, const TextStyle& style = {}, int degrees = 0) {
    body_ << "<text class=\"" << (style.rim ? "rim " : "") << style.ink << "\" x=\"" << x << "\" y=\"" << y
          << "\" font-size=\"" << style.size << "\" text-anchor=\"" << style.anchor << '"'
          << (style.bold ? " font-weight=\"bold\"" : "");
    if (degrees != 0) body_ << " transform=\"rotate(" << degrees << ' ' << x << ' ' << y << ")\"";
    body_ << '>' << escaped(what) << "</text>\n";
  }

  std::string str() const { return body_.str() + "</svg>\n"; }

 private:
  std::ostringstream body_;
};

}  // namespace display
