// The losses of a training run, and their picture.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace training {

struct LossCurve {
  struct Point {
    std::ptrdiff_t step;  ///< how many were done
    double loss;
  };
  std::vector<double> training;   ///< of each step
  std::vector<Point> validation;  ///< now and then
};

/// Each loss as the mean of those before it, of which the last `window` weigh most. Its own beginning does not pull it.
std::vector<double> smoothed(const std::vector<double>& losses, double window);

/// Losses over steps: those of single steps faint, smoothed and validated ones as lines. For light and dark screens.
/// The title is UTF-8; losses that are not finite are left out.
std::string loss_curve_svg(const LossCurve& curve, const std::string& title);

}  // namespace training
