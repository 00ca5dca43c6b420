#include "chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "svg.h"
#include "table.h"

namespace bench {

namespace {

using display::text_width;
using display::TextStyle;

constexpr double kBar = 13, kGap = 12;  // height of a bar, space between groups
constexpr double kTickWidth = 48;       // width of a number below an axis
constexpr double kClear = 2;            // gap between a label and a dashed line
constexpr double kMargin = 24, kLine = 17, kHeading = 28;
constexpr TextStyle kTitle{20, "ink", "start", true}, kAxisTitle{13, "ink", "start", true};
constexpr TextStyle kNote{12, "faint"}, kUnit{12, "ink", "middle"}, kTick{11, "faint", "middle"}, kValue{11};
constexpr TextStyle kName{12.5, "ink", "end", true}, kDetail{11, "faint", "end"};

/// Returns a step of 1, 2 or 5 times a power of ten, with about `target` steps up to `max`.
double round_step(double max, double target) {
  const double power = std::pow(10, std::floor(std::log10(max / target)));
  const double rest = max / target / power;
  return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// Formats a power of ten: "1e-4", "0.01", "100".
std::string decade_text(double power) {
  if (power >= -2 && power <= 3) return number_text(std::pow(10, power));
  return std::string("1e").append(number_text(power));
}

/// Maps values to pixels on an axis that starts at pixel `left`.
class Ruler {
 public:
  Ruler(const BarChart& chart, std::size_t axis, double left) : axis_(chart.axes[axis]), left_(left) {
    double most = 0, least = std::numeric_limits<double>::infinity();
    const auto see = [&](double value) {
      if (!(value > 0) || !std::isfinite(value)) return;
      most = std::max(most, value);
      least = std::min(least, value);
    };
    for (const auto& group : chart.groups) {
      for (const auto& bar : group.bars) see(bar.on[axis].value);
      if (axis == 0) see(group.mark);
    }
    if (most == 0) most = least = 1;
    if (axis_.scale == BarChart::Scale::linear) {
      step_ = round_step(most, axis_.width / 90);
      last_ = 1.04 * most;
    } else if (axis_.scale == BarChart::Scale::decades) {
      first_ = std::floor(std::log10(least) - 1e-9);
      last_ = std::max(std::ceil(std::log10(most)), first_ + 1);
      step_ = std::ceil((last_ - first_) * kTickWidth / axis_.width);
    } else {
      first_ = 10, step_ = 5;  // powers of two
      last_ = first_ + step_ * std::max(std::ceil((std::log2(most) - first_) / step_), 1.0);
    }
  }

  double left() const { return left_; }
  double x(double value) const {
    const double at = axis_.scale == BarChart::Scale::linear    ? value
                      : axis_.scale == BarChart::Scale::decades ? std::log10(std::max(value, 1e-300))
                                                                : std::log2(std::max(value, 1.0));
    return left_ + axis_.width * std::clamp((at - first_) / (last_ - first_), 0.0, 1.0);
  }

  void draw(display::Svg& svg, double top, double bottom) const {
    for (double at = first_; at <= last_ + 1e-9; at += step_) {
      const double value = axis_.scale == BarChart::Scale::linear    ? at
                           : axis_.scale == BarChart::Scale::decades ? std::pow(10, at)
                                                                     : std::exp2(at);
      svg.line(x(value), top, x(value), bottom, "grid");
      const std::string text = axis_.scale == BarChart::Scale::bytes     ? bytes_text(value)
                               : axis_.scale == BarChart::Scale::decades ? decade_text(at)
                                                                         : number_text(value);
      svg.text(x(value), bottom + 17, text + axis_.suffix, kTick);
    }
    svg.text(left_, top - 10, axis_.heading, kAxisTitle);
    svg.text(left_ + axis_.width / 2, bottom + 37, axis_.unit, kUnit);
  }

 private:
  const BarChart::Axis& axis_;
  double left_, first_ = 0, last_ = 1, step_ = 1;
};

class Drawing {
 public:
  explicit Drawing(const BarChart& chart) : chart_(chart) {
    double names = 0;
    for (const auto& group : chart.groups)
      names = std::max({names, text_width(group.name, kName), text_width(group.detail, kDetail)});
    double left = kMargin + names + 12;
    for (std::size_t a = 0; a < chart.axes.size(); ++a) {
      rulers_.emplace_back(chart, a, left);
      left =
          std::max(left + std::max(chart.axes[a].width, text_width(chart.axes[a].heading, kAxisTitle)), texts_end(a)) +
          36;
    }
    width_ = left - 36 + kMargin;
    width_ = std::max(width_, kMargin + text_width(chart.title, kTitle) + kMargin);
    for (const auto& note : chart.notes) width_ = std::max(width_, kMargin + text_width(note, kNote) + kMargin);
    place_legend();
    for (const auto& group : chart.groups)
      heights_.push_back(kGap +
                         std::max(kBar * static_cast<double>(group.bars.size()), group.detail.empty() ? 0 : 26.0));
  }

  std::string draw() const {
    const double top = legend_bottom_ + 38;
    double bottom = top;
    for (std::size_t g = 0; g < heights_.size(); ++g)
      bottom += heights_[g] + (chart_.groups[g].heading.empty() ? 0 : kHeading);
    display::Svg svg(std::ceil(width_), std::ceil(bottom + 56), chart_.title);
    svg.text(kMargin, 36, chart_.title, kTitle);
    for (std::size_t i = 0; i < chart_.notes.size(); ++i)
      svg.text(kMargin, 58 + kLine * static_cast<double>(i), chart_.notes[i], kNote);
    draw_legend(svg);
    for (const Ruler& ruler : rulers_) ruler.draw(svg, top, bottom);
    double y = top;
    for (std::size_t g = 0; g < heights_.size(); ++g) {
      if (!chart_.groups[g].heading.empty()) {
        svg.text(kMargin, y + kHeading - 8, chart_.groups[g].heading, kAxisTitle);
        y += kHeading;
      }
      draw_group(svg, chart_.groups[g], y, heights_[g]);
      y += heights_[g];
    }
    return svg.str();
  }

 private:
  double texts_end(std::size_t axis) const {
    double end = 0;
    for (const auto& group : chart_.groups)
      for (const auto& bar : group.bars) end = std::max(end, text_x(axis, bar) + text_width(bar.on[axis].text, kValue));
    return end;
  }
  double text_x(std::size_t axis, const BarChart::Bar& bar) const {
    const double value = bar.on[axis].value;
    return 5 + (std::isnan(value) ? rulers_[axis].left() : rulers_[axis].x(value));
  }

  /// Breaks the legend into lines that fit the chart's width.
  void place_legend() {
    double x = kMargin, y = 58 + kLine * static_cast<double>(chart_.notes.size()) + 8;
    const auto place = [&](const std::string& name, const std::string& colour) {
      const double needed = 24 + text_width(name) + 22;
      if (x > kMargin && x + needed > width_) x = kMargin, y += 20;
      legend_.push_back({x, y, name, colour});
      x += needed;
    };
    const auto has_bars = [&](std::size_t series) {
      return std::any_of(chart_.groups.begin(), chart_.groups.end(), [&](const auto& group) {
        return std::any_of(group.bars.begin(), group.bars.end(), [&](const auto& bar) { return bar.series == series; });
      });
    };
    for (std::size_t i = 0; i < chart_.series.size(); ++i)
      if (has_bars(i)) place(chart_.series[i], colour(i));
    if (!chart_.mark.empty()) place(chart_.mark, "mark");
    legend_bottom_ = legend_.empty() ? y - 20 : y;
  }

  void draw_legend(display::Svg& svg) const {
    for (const auto& [x, y, name, colour] : legend_) {
      if (colour == "mark")
        svg.line(x, y - 4, x + 18, y - 4, colour, 2, "4 3");
      else
        svg.rect(x, y - 10, 18, 11, colour, 2);
      svg.text(x + 24, y, name);
    }
  }

  void draw_group(display::Svg& svg, const BarChart::Group& group, double y, double height) const {
    const double middle = y + height / 2;
    svg.text(rulers_[0].left() - 12, middle + (group.detail.empty() ? 4.5 : -2), group.name, kName);
    if (!group.detail.empty()) svg.text(rulers_[0].left() - 12, middle + 12, group.detail, kDetail);
    double at = middle - kBar * static_cast<double>(group.bars.size()) / 2;
    if (std::isfinite(group.mark)) draw_mark(svg, group, {y + 1, y + height - 1}, at);
    for (const auto& bar : group.bars) {
      for (std::size_t a = 0; a < rulers_.size(); ++a) {
        const auto& [value, text] = bar.on[a];
        const double from = rulers_[a].left();
        if (!std::isnan(value))
          svg.rect(from, at + 0.5, std::max(rulers_[a].x(value) - from, 0.5), kBar - 1, colour(bar.series), 1.5);
        if (!text.empty()) svg.text(text_x(a, bar), at + 10.5, text, kValue);
      }
      at += kBar;
    }
  }

  /// Draws the dashed line from `ends.first` down to `ends.second`. The line skips bars whose label it would cross. The
  /// piece after the last bar that it skips is omitted if it is shorter than a bar, because it would look like part of
  /// the label. The first bar begins at `top`.
  void draw_mark(display::Svg& svg, const BarChart::Group& group, std::pair<double, double> ends, double top) const {
    const double x = rulers_[0].x(group.mark);
    double from = ends.first;
    const auto line_to = [&](double to, double least) {
      if (to - from >= least) svg.line(x, from, x, to, "mark", 2, "4 3");
      from = to + kBar;
    };
    for (const auto& bar : group.bars) {
      const double text = text_x(0, bar), room = text_width(bar.on[0].text, kValue);
      if (room > 0 && x > text - kClear && x < text + room + kClear) line_to(top, 1);
      top += kBar;
    }
    line_to(ends.second, kBar);
  }

  /// Returns the colour of a series. If the chart names no series, its bars are not grey, because grey is for
  /// baselines.
  std::string colour(std::size_t series) const {
    return display::series_class('f', chart_.series.empty() ? 1 : series);
  }

  struct Entry {
    double x, y;
    std::string name, colour;
  };
  const BarChart& chart_;
  std::vector<Ruler> rulers_;
  std::vector<Entry> legend_;
  std::vector<double> heights_;
  double width_, legend_bottom_;
};

}  // namespace

std::string svg_of(const BarChart& chart) { return Drawing(chart).draw(); }

}  // namespace bench
