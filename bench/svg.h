// Just enough SVG for a chart.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bench {

struct TextStyle {
  double size = 12;
  std::string_view fill = "#333";
  std::string_view anchor = "start";  ///< start, middle or end: which part of the text is at x
  bool bold = false;
};

/// A drawing on a white ground; x to the right, y down, in pixels.
class Svg {
 public:
  Svg(double width, double height) {
    body_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height << "\" width=\""
          << width << "\" height=\"" << height << "\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n";
    rect(0, 0, width, height, "#fff");
  }

  void rect(double x, double y, double w, double h, std::string_view fill, double radius = 0) {
    body_ << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << w << "\" height=\"" << h << "\" fill=\"" << fill
          << "\" rx=\"" << radius << "\"/>\n";
  }

  /// `dashes` as in stroke-dasharray; empty for a solid line.
  void line(double x1, double y1, double x2, double y2, std::string_view stroke, double width = 1,
            std::string_view dashes = "") {
    body_ << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2 << "\" stroke=\"" << stroke
          << "\" stroke-width=\"" << width << '"';
    if (!dashes.empty()) body_ << " stroke-dasharray=\"" << dashes << '"';
    body_ << "/>\n";
  }

  /// Text whose base line is at y. A white rim keeps it legible on lines.
  void text(double x, double y, std::string_view what, const TextStyle& style = {}) {
    const auto put = [&](std::string_view extra) {
      body_ << "<text x=\"" << x << "\" y=\"" << y << "\" font-size=\"" << style.size << "\" fill=\"" << style.fill
            << "\" text-anchor=\"" << style.anchor << '"' << (style.bold ? " font-weight=\"bold\"" : "") << extra
            << '>';
      for (const char c : what) c == '<' ? body_ << "&lt;" : c == '&' ? body_ << "&amp;" : body_ << c;
      body_ << "</text>\n";
    };
    put(" stroke=\"#fff\" stroke-width=\"3\" stroke-linejoin=\"round\"");
    put("");
  }

  /// @throws std::runtime_error if the file cannot be written.
  void save(const std::string& path) const {
    std::ofstream file(path);
    file << body_.str() << "</svg>\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  }

 private:
  std::ostringstream body_;
};

}  // namespace bench
