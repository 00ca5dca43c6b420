// The losses of a training run, and a chart of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace training {

struct LossCurve {
  struct Point {
    std::ptrdiff_t step;  ///< number of steps done
    double loss;
  };
  std::vector<double> training;   ///< of each step
  std::vector<Point> validation;  ///< at some steps
  /// Names in the legend, which should state how the two losses differ, such as by dropout.
  std::string training_name = "each step", validation_name = "validation";
};

/// Returns the mean of the last `count` losses, or of all if there are fewer, skipping those that are not finite. NaN
/// if none is finite.
double mean_of_last(const std::vector<double>& losses, std::size_t count);

/// Returns the mean of the last 50 losses, or of all if there are fewer, for a report: "1.234, mean of the last 50".
std::string last_losses_text(const std::vector<double>& losses);

/// Replaces each loss by the mean of a window centred on it, of about `window` losses. At the beginning, where losses
/// fall fast, the window shrinks on both sides, so that the mean neither lags nor leads; at the end only its second
/// half is cut off. Losses that are not finite are skipped.
std::vector<double> smoothed(const std::vector<double>& losses, std::size_t window);

/// Draws losses over steps: single steps as a faint line, their smoothed() mean and the validation losses as bold ones.
/// Colours follow the reader's light or dark mode. The title is UTF-8. Losses that are not finite are skipped.
std::string loss_curve_svg(const LossCurve& curve, const std::string& title);

}  // namespace training
