// The losses of a training run, and their picture.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace training {

struct LossCurve {
  struct Point {
    std::ptrdiff_t step;  ///< how many steps were done
    double loss;
  };
  std::vector<double> training;   ///< of each step
  std::vector<Point> validation;  ///< now and then
  /// What the legend calls both. A reader who compares them must know what only one of them has.
  std::string training_name = "each step", validation_name = "validation";
};

/// The mean of the last `count` losses, or of all if there are fewer, without those that are not finite. NaN if none is
/// finite.
double mean_of_last(const std::vector<double>& losses, std::size_t count);

/// Replaces each loss by the mean of those around it: `window` in all, equally many before and behind it. At the
/// beginning, where losses fall fast, fewer are taken on both sides, so that the mean neither lags behind nor runs
/// ahead; at the end only those behind are missing. Losses that are not finite are left out.
std::vector<double> smoothed(const std::vector<double>& losses, std::size_t window);

/// Draws losses over steps: single steps as a faint line, their smoothed() mean and the validation losses as bold ones.
/// Colours follow the reader's screen, light or dark. The title is UTF-8. Losses that are not finite are left out.
std::string loss_curve_svg(const LossCurve& curve, const std::string& title);

}  // namespace training
