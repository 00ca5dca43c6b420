// Plain-text tables for a terminal.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

namespace bench {

/// Returns the number of terminal columns of a text; UTF-8 continuation bytes take none.
inline std::size_t width(const std::string& s) {
  return static_cast<std::size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Formats `value` with a fixed number of digits after the point.
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// Formats a number of bytes: "40 KiB", "2.5 MiB".
inline std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 4> kUnits{" B", " KiB", " MiB", " GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fixed(bytes, bytes < 10 && unit > 0 && bytes != std::floor(bytes) ? 1 : 0) + kUnits[unit];
}

/// Formats a time: "640 ns", "12.3 µs", "4.56 ms", "1.23 s".
inline std::string time_text(double seconds) {
  if (seconds < 1e-6) return fixed(1e9 * seconds, 0) + " ns";
  if (seconds < 1e-3) return fixed(1e6 * seconds, seconds < 1e-4 ? 2 : 1) + " µs";
  if (seconds < 1) return fixed(1e3 * seconds, seconds < 0.1 ? 2 : 1) + " ms";
  return fixed(seconds, 2) + " s";
}

/// Rows of text below two lines of headings; the first `left` columns are left-aligned, the others right-aligned.
class Table {
 public:
  explicit Table(std::size_t left) : left_(left) {}

  /// Adds a column with a heading and a second line below it. Adjacent columns with the same heading share it.
  void column(const std::string& heading, const std::string& below) {
    headings_.push_back(heading);
    belows_.push_back(below);
  }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  void print(std::ostream& out) const {
    const std::vector<std::size_t> widths = column_widths();
    std::string top, rule;
    for (std::size_t begin = 0, end; begin < widths.size(); begin = end) {
      std::size_t group = widths[begin];
      for (end = begin + 1; joined(end); ++end) group += kInside + widths[end];
      const std::string gap(begin > 0 ? kBetween : 0, ' ');
      const std::size_t space = group - width(headings_[begin]), before = begin < left_ ? 0 : (space + 1) / 2;
      top += gap + std::string(before, ' ') + headings_[begin] + std::string(space - before, ' ');
      rule += gap;
      for (std::size_t i = 0; i < group; ++i) rule += "─";
    }
    out << trimmed(top) << '\n';
    print_line(out, belows_, widths);
    out << rule << '\n';
    for (const auto& r : rows_) print_line(out, r, widths);
  }

 private:
  static constexpr std::size_t kInside = 2, kBetween = 3;  // spaces between columns of a group, and between groups

  bool joined(std::size_t c) const { return c > 0 && c < headings_.size() && headings_[c] == headings_[c - 1]; }

  std::vector<std::size_t> column_widths() const {
    std::vector<std::size_t> widths;
    for (std::size_t c = 0; c < headings_.size(); ++c) {
      std::size_t w = width(belows_[c]);
      for (const auto& r : rows_) w = std::max(w, width(r[c]));
      widths.push_back(w);
    }
    for (std::size_t begin = 0, end; begin < widths.size(); begin = end) {
      std::size_t group = widths[begin];
      for (end = begin + 1; joined(end); ++end) group += kInside + widths[end];
      const std::size_t heading = width(headings_[begin]);
      if (heading > group) widths[begin] += heading - group;
    }
    return widths;
  }

  void print_line(std::ostream& out, const std::vector<std::string>& cells, const std::vector<std::size_t>& w) const {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(w[c] - width(cells[c]), ' ');
      if (c > 0) line += std::string(joined(c) ? kInside : kBetween, ' ');
      line += c < left_ ? cells[c] + pad : pad + cells[c];
    }
    out << trimmed(line) << '\n';
  }

  static std::string trimmed(std::string line) { return line.erase(line.find_last_not_of(' ') + 1); }

  std::size_t left_;
  std::vector<std::string> headings_, belows_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace bench
