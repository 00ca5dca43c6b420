// Bars in groups as a picture, which says what the table of a benchmark says.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bench {

/// Groups of bars below each other: a group for each work, and in it a bar for each way to do it. The bars have one
/// axis, or several side by side, such as speed and memory.
struct BarChart {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  enum class Scale {
    linear,   ///< from 0
    decades,  ///< logarithmic, from the power of ten below the smallest
    bytes,    ///< logarithmic, from 1 KiB; less is drawn as nothing
  };
  struct Axis {
    std::string heading;  ///< above: what is shown, and which bars are the better ones
    std::string unit;     ///< below: what the numbers are
    Scale scale = Scale::linear;
    std::string suffix = "";  ///< behind each number: " %"
    double width = 420;       ///< pixels
  };
  struct Length {
    double value = kNone;  ///< kNone: no bar, only the text
    std::string text = "";
  };
  struct Bar {
    std::size_t series;      ///< its number in the legend
    std::vector<Length> on;  ///< one for each axis
  };
  struct Group {
    std::string name, detail;  ///< to the left: bold, and faint below
    std::vector<Bar> bars;
    double mark = kNone;       ///< where a dashed line crosses the bars of the first axis
    std::string heading = "";  ///< above this group and those behind it, where a part of the chart begins
  };

  std::string title;
  std::vector<std::string> notes;   ///< lines below: on what machine, under which conditions
  std::vector<std::string> series;  ///< the legend; empty: all bars are of one kind
  std::string mark;                 ///< what the dashed lines are; empty: there are none
  std::vector<Axis> axes;
  std::vector<Group> groups = {};
};

/// The chart as SVG.
std::string svg_of(const BarChart& chart);

}  // namespace bench
