// Benchmark charts are readable on light and dark backgrounds and by colour-blind readers, and nothing overlaps.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "chart.h"
#include "family_chart.h"
#include "style.h"
#include "svg.h"

namespace {

using namespace bench;
using display::kDark;
using display::kLight;
using display::Theme;
using Colour = std::array<double, 3>;

/// The linear red, green and blue of "#rrggbb" (IEC 61966-2-1).
Colour linear(std::string_view hex) {
  Colour c;
  for (std::size_t i = 0; i < 3; ++i) {
    const double x = std::stoi(std::string(hex.substr(1 + 2 * i, 2)), nullptr, 16) / 255.0;
    c[i] = x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  }
  return c;
}

/// Relative luminance and contrast as WCAG 2.1 defines them.
double luminance(const Colour& c) { return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; }
double contrast(double a, double b) { return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05); }
double contrast(std::string_view a, std::string_view b) { return contrast(luminance(linear(a)), luminance(linear(b))); }

TEST(Style, TextAndShapesContrastWithTheBackground) {
  for (const Theme* theme : {&kLight, &kDark}) {
    for (const auto text : {theme->ink, theme->faint}) EXPECT_GE(contrast(text, theme->paper), 4.5) << text;
    for (const auto shape : theme->series) EXPECT_GE(contrast(shape, theme->paper), 3) << shape;
    EXPECT_GE(contrast(theme->mark, theme->paper), 3);
  }
}

TEST(Style, NumbersContrastWithTheirCells) {
  const auto value = [](std::string_view hex, std::size_t i) {
    return std::stoi(std::string(hex.substr(1 + 2 * i, 2)), nullptr, 16);
  };
  for (const Theme* theme : {&kLight, &kDark})
    for (int percent = 0; percent <= 100; ++percent) {
      // Opacity mixes sRGB values, not linear light.
      char mixed[8] = "#";
      for (std::size_t i = 0; i < 3; ++i)
        std::snprintf(mixed + 1 + 2 * i, 3, "%02x",
                      static_cast<unsigned>(std::lround(
                          value(theme->none, i) + percent / 100.0 * (value(theme->full, i) - value(theme->none, i)))) &
                          0xFFu);
      const std::string where = display::class_on_weight(percent / 100.0);
      const bool white = where == (theme == &kLight ? "on-high" : "on-low");
      EXPECT_GE(contrast(white ? "#ffffff" : "#000000", mixed), 4.5) << percent << " % " << mixed;
    }
}

/// The distance between two colours in CIE Lab.
double distance(const Colour& a, const Colour& b) {
  const auto lab = [](const Colour& c) {
    const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
    const double x = f((0.4124564 * c[0] + 0.3575761 * c[1] + 0.1804375 * c[2]) / 0.95047), y = f(luminance(c)),
                 z = f((0.0193339 * c[0] + 0.1191920 * c[1] + 0.9503041 * c[2]) / 1.08883);
    return Colour{116 * y - 16, 500 * (x - y), 200 * (y - z)};
  };
  const Colour p = lab(a), q = lab(b);
  return std::hypot(p[0] - q[0], p[1] - q[1], p[2] - q[2]);
}

TEST(Style, SeriesDifferForColourBlindReaders) {
  // Machado, Oliveira and Fernandes (2009), complete protanopia, deuteranopia and tritanopia.
  using Matrix = std::array<Colour, 3>;
  const std::vector<Matrix> eyes{
      {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
      {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}},
      {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}},
      {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}};
  const auto seen = [](const Matrix& eye, std::string_view hex) {
    const Colour c = linear(hex);
    Colour to;
    for (std::size_t i = 0; i < 3; ++i)
      to[i] = std::clamp(eye[i][0] * c[0] + eye[i][1] * c[1] + eye[i][2] * c[2], 0.0, 1.0);
    return to;
  };
  for (const Theme* theme : {&kLight, &kDark})
    for (const Matrix& eye : eyes)
      for (std::size_t i = 0; i < theme->series.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          EXPECT_GE(distance(seen(eye, theme->series[i]), seen(eye, theme->series[j])), 25)
              << theme->series[i] << " and " << theme->series[j];
}

struct Box {
  double left, right, top, bottom;
  std::string what;
};

/// The approximate bounding boxes of the text elements of an SVG.
std::vector<Box> texts_of(const std::string& svg) {
  static const std::regex text(
      "<text class=\"[^\"]*\" x=\"([^\"]*)\" y=\"([^\"]*)\" font-size=\"([^\"]*)\" text-anchor=\"([a-z]*)\"( "
      "font-weight=\"bold\")?>([^<]*)</text>");
  std::vector<Box> boxes;
  for (std::sregex_iterator at(svg.begin(), svg.end(), text), end; at != end; ++at) {
    const std::smatch& m = *at;
    const double x = std::stod(m[1]), y = std::stod(m[2]), size = std::stod(m[3]);
    // text_width() includes a margin; 0.95 of it is the average width in DejaVu Sans.
    const std::string what = std::regex_replace(m[6].str(), std::regex("&[a-z]+;"), "&");
    const double width = 0.95 * display::text_width(what, {size, "ink", "start", m[5].matched});
    const double left = m[4] == "end" ? x - width : m[4] == "middle" ? x - width / 2 : x;
    boxes.push_back({left, left + width, y - 0.75 * size, y, what});
  }
  return boxes;
}

void expect_readable(const std::string& svg) {
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex("width=\"([0-9.]+)\" height=\"([0-9.]+)\">")));
  const double width = std::stod(size[1]), height = std::stod(size[2]);
  const auto boxes = texts_of(svg);
  EXPECT_GT(boxes.size(), 5u);
  for (const Box& a : boxes) {
    EXPECT_TRUE(a.left >= 0 && a.right <= width && a.top >= 0 && a.bottom <= height) << a.what << " is cut off";
    for (const Box& b : boxes) {
      if (&a >= &b) continue;
      const bool apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
      EXPECT_TRUE(apart) << a.what << " and " << b.what;
    }
  }
  // Elements are properly nested.
  std::vector<std::string> open;
  static const std::regex tag("<(/?)([a-z]+)[^<>]*?(/?)>");
  for (std::sregex_iterator at(svg.begin(), svg.end(), tag), end; at != end; ++at) {
    if ((*at)[3].length() > 0) continue;
    if ((*at)[1].length() == 0) {
      open.push_back((*at)[2]);
      continue;
    }
    ASSERT_FALSE(open.empty());
    EXPECT_EQ(open.back(), (*at)[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  for (const char* none : {"nan", "inf"}) EXPECT_EQ(svg.find(std::string("\"") + none), std::string::npos);
}

/// A chart with all features: groups, series, three kinds of axes, a heading, a series that was not run.
BarChart crowded() {
  BarChart chart{
      .title = "Some attention against some other attention <on> this & that, with a title of some length",
      .notes = {"a processor of some name, a compiler", "two lines of conditions"},
      .series = {"naive", "flash", "flash with another instruction set", "a fourth", "a fifth", "a sixth", "f16"},
      .mark = "FMA peak, measured beside each row",
      .axes = {{"Speed: longer is better", "GFLOP/s", BarChart::Scale::linear, " ×"},
               {"Largest error: shorter is better", "against double", BarChart::Scale::decades, "", 200},
               {"Memory: shorter is better", "heap", BarChart::Scale::bytes, "", 200}}};
  for (int g = 0; g < 6; ++g) {
    BarChart::Group group{.name = "B=1 H=32/8 N=" + std::to_string(64 << g) + " D=128",
                          .detail = g % 2 == 0 ? "causal, softcap, ALiBi, float" : "",
                          .bars = {},
                          .mark = 8,
                          .heading = g == 3 ? "A separate part" : ""};
    for (std::size_t series = 0; series < (g == 5 ? 1 : chart.series.size()); ++series) {
      const auto w = static_cast<double>(series);
      group.bars.push_back({series,
                            {{series == 4 ? BarChart::kNone : 1 + w,
                              series == 4 ? "not run: its scores do not fit" : "56.5 ms, 12.34 × as fast as"},
                             {std::pow(10, -2 * w), "1e-5"},
                             {std::exp2(3 * w + g), "12.5 MiB"}}});
    }
    chart.groups.push_back(std::move(group));
  }
  return chart;
}

TEST(Chart, NothingOverlapsOrIsCutOff) { expect_readable(svg_of(crowded())); }

TEST(Chart, DashedLinesCrossNoText) {
  const std::string svg = svg_of(crowded());
  static const std::regex line("<line class=\"mark\" x1=\"([^\"]*)\" y1=\"([^\"]*)\" x2=\"([^\"]*)\" y2=\"([^\"]*)\"");
  const auto boxes = texts_of(svg);
  double upright = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), line), end; at != end; ++at) {
    const std::smatch& m = *at;
    const Box l{std::stod(m[1]), std::stod(m[3]), std::stod(m[2]), std::stod(m[4]), ""};
    upright += l.bottom - l.top;
    for (const Box& b : boxes) {
      const bool apart = l.right <= b.left || b.right <= l.left || l.bottom <= b.top || b.bottom <= l.top;
      EXPECT_TRUE(apart) << "a dashed line crosses " << b.what;
      const bool below = l.top >= b.bottom && l.top < b.bottom + 6 && l.left > b.left && l.right < b.right;
      EXPECT_FALSE(below && l.bottom - l.top < 13) << "a dash hangs below " << b.what;
    }
  }
  EXPECT_GT(upright, 100) << "the dashed lines are missing";
}

TEST(Chart, LegendListsOnlySeriesWithBars) {
  BarChart chart = crowded();
  chart.axes = {chart.axes[0]};
  chart.notes = {std::string(150, 'x')};  // wider than the bars
  chart.series.push_back("unused");
  chart.series[2] += ", whose name is so long that the legend needs more than one line below all that";
  for (auto& group : chart.groups)
    for (auto& bar : group.bars) bar.on.resize(1);
  const std::string svg = svg_of(chart);
  expect_readable(svg);
  EXPECT_NE(svg.find(">a fourth<"), std::string::npos);
  EXPECT_EQ(svg.find(">unused<"), std::string::npos);
}

TEST(Chart, BarLengthsAreProportionalToValues) {
  BarChart chart{.title = "t",
                 .notes = {},
                 .series = {},
                 .mark = "",
                 .axes = {{"Speed", "unit", BarChart::Scale::linear, "", 104}},
                 .groups = {{"a", "", {{0, {{100, ""}}}}}, {"b", "", {{0, {{25, ""}}}}}, {"c", "", {{0, {{0, ""}}}}}}};
  const std::string svg = svg_of(chart);
  static const std::regex bar("<rect class=\"f1\" [^>]*width=\"([0-9.]+)\"");
  std::vector<double> widths;
  for (std::sregex_iterator at(svg.begin(), svg.end(), bar), end; at != end; ++at)
    widths.push_back(std::stod((*at)[1]));
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_NEAR(widths[0], 100, 0.01);  // the axis reaches 4 % past the longest
  EXPECT_NEAR(widths[1], 25, 0.01);
  EXPECT_NEAR(widths[2], 0.5, 0.01) << "a value of 0 is drawn as a hairline";
}

TEST(Chart, NaNIsShownAsText) {
  BarChart chart = crowded();
  for (auto& group : chart.groups) {
    group.mark = BarChart::kNone;
    for (auto& bar : group.bars)
      for (auto& length : bar.on) length.value = std::numeric_limits<double>::quiet_NaN();
  }
  const std::string svg = svg_of(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("rect class=\"f6"), std::string::npos) << "there are six colours";
  EXPECT_NE(svg.find("not run: its scores do not fit"), std::string::npos);
  EXPECT_NE(svg.find("&lt;on&gt; this &amp; that"), std::string::npos);
}

TEST(Chart, CurvesHaveNamesAndExponents) {
  std::vector<Curve> curves;
  for (int c = 0; c < 9; ++c) {
    curves.push_back({"curve " + std::to_string(c), {}});
    for (double x = 1024; x <= (c == 0 ? 8192 : 65536); x *= 2) curves.back().points.push_back({x, 1e-6 * (c + 1) * x});
  }
  const std::string svg = svg_of("Curves", curves);
  expect_readable(svg);
  EXPECT_NE(svg.find(">curve 8, n^1.00<"), std::string::npos);
  EXPECT_NEAR(exponent({"", {{1, 3}, {2, 12}, {4, 48}}}), 2, 1e-12);
}

}  // namespace
