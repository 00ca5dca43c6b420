// Grouped bar charts of benchmark results.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bench {

/// Groups of horizontal bars: a group per workload, a bar per variant. The chart has one axis, or several side by side,
/// such as speed and memory.
struct BarChart {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  enum class Scale {
    linear,   ///< from 0
    decades,  ///< logarithmic, from the power of ten below the smallest
    bytes,    ///< logarithmic, from 1 KiB; smaller values get no bar
  };
  struct Axis {
    std::string heading;  ///< above: the quantity, and whether longer or shorter is better
    std::string unit;     ///< below: the unit of the numbers
    Scale scale = Scale::linear;
    std::string suffix = "";  ///< after each number, e.g. " %"
    double width = 420;       ///< pixels
  };
  struct Length {
    double value = kNone;  ///< kNone: no bar, only the label
    std::string text = "";
  };
  struct Bar {
    std::size_t series;      ///< index in the legend
    std::vector<Length> on;  ///< one per axis
  };
  struct Group {
    std::string name, detail;  ///< to the left: bold, and faint below
    std::vector<Bar> bars;
    double mark = kNone;       ///< where a dashed line crosses the bars of the first axis
    std::string heading = "";  ///< above this group, where a section of the chart begins
  };

  std::string title;
  std::vector<std::string> notes;   ///< lines below the title: machine, conditions
  std::vector<std::string> series;  ///< the legend; empty if all bars are of one kind
  std::string mark;                 ///< meaning of the dashed lines; empty if there are none
  std::vector<Axis> axes;
  std::vector<Group> groups = {};
};

/// Returns the chart as SVG.
std::string svg_of(const BarChart& chart);

}  // namespace bench
