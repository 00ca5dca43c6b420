#include "loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "decimals.h"
#include "svg.h"

namespace training {

namespace {

using display::Point;

// Size of the picture and margins of the plot, in pixels.
constexpr double kWidth = 720, kHeight = 360, kLeft = 56, kRight = 24, kTop = 52, kBottom = 48;
constexpr std::size_t kMostPoints = 600;  // per curve; the eye cannot distinguish more

/// The style besides colours. In a page the curve is as wide as its column.
constexpr const char* kStyle = R"(.loss-curve{width:100%;height:auto}
.loss-step{stroke-opacity:.45}
.loss-smooth,.loss-validation{stroke-width:2}
)";
/// Classes of the curves, each with the series that gives its colour.
constexpr const char *kStep = "loss-step s1", *kSmooth = "loss-smooth s1", *kValidation = "loss-validation s2";

/// Returns a tick distance of 1, 2 or 5 times a power of ten that gives about `count` ticks.
double tick_distance(double range, double count) {
  const double rough = range / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * 0.999) return factor * power;
  return 10 * power;
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

/// Maps steps and losses to positions in the picture.
class Axes {
 public:
  explicit Axes(const LossCurve& curve) {
    double last = static_cast<double>(curve.training.size());
    for (const auto& p : curve.validation) last = std::max(last, static_cast<double>(p.step)), see(p.loss);
    for (const double loss : curve.training) see(loss);
    steps_ = std::max(last, 1.0);
    if (lowest_ > highest_) lowest_ = 0, highest_ = 1;
    const double range = std::max(highest_ - lowest_, 1e-3);
    tick_ = tick_distance(range, 6);
    lowest_ = std::floor(lowest_ / tick_) * tick_;
    highest_ = std::max(std::ceil(highest_ / tick_) * tick_, lowest_ + tick_);
  }

  Point operator()(double step, double loss) const {
    return {kLeft + (kWidth - kLeft - kRight) * step / steps_,
            kTop + (kHeight - kTop - kBottom) * (highest_ - loss) / (highest_ - lowest_)};
  }

  void draw(display::Svg& svg) const {
    for (int i = 0; lowest_ + i * tick_ <= highest_ + tick_ / 2; ++i) {
      const double loss = lowest_ + i * tick_;
      const Point a = (*this)(0, loss), b = (*this)(steps_, loss);
      svg.line(a.x, a.y, b.x, b.y, "grid");
      svg.text(a.x - 8, a.y + 4, number(loss), {12, "faint", "end"});
    }
    const double distance = std::max(tick_distance(steps_, 8), 1.0);
    for (double step = 0; step <= steps_; step += distance) {
      const Point p = (*this)(step, lowest_);
      svg.line(p.x, p.y, p.x, p.y + 5, "grid");
      svg.text(p.x, p.y + 19, number(step), {12, "faint", "middle"});
    }
    svg.text((kLeft + kWidth - kRight) / 2, kHeight - 10, "step", {12, "faint", "middle"});
    svg.text(16, (kTop + kHeight - kBottom) / 2, "loss", {12, "faint", "middle"}, -90);
  }

 private:
  void see(double loss) {
    if (!std::isfinite(loss)) return;
    lowest_ = std::min(lowest_, loss);
    highest_ = std::max(highest_, loss);
  }

  double steps_, tick_;
  double lowest_ = std::numeric_limits<double>::infinity(), highest_ = -lowest_;
};

/// Returns the smallest and the largest of each group of neighbouring losses, so that no outlier is lost.
std::vector<Point> extremes(const std::vector<double>& losses, const Axes& axes) {
  std::vector<Point> points;
  const std::size_t stride = std::max<std::size_t>(1, 2 * losses.size() / kMostPoints);
  for (std::size_t first = 0; first < losses.size(); first += stride) {
    std::vector<std::size_t> finite;
    for (std::size_t i = first; i < std::min(first + stride, losses.size()); ++i)
      if (std::isfinite(losses[i])) finite.push_back(i);
    if (finite.empty()) continue;
    const auto less = [&](std::size_t a, std::size_t b) { return losses[a] < losses[b]; };
    const auto [low, high] = std::minmax_element(finite.begin(), finite.end(), less);
    const auto add = [&](std::size_t i) { points.push_back(axes(static_cast<double>(i + 1), losses[i])); };
    add(std::min(*low, *high));
    if (*low != *high) add(std::max(*low, *high));
  }
  return points;
}

std::vector<Point> every_so_often(const std::vector<double>& losses, const Axes& axes) {
  std::vector<Point> points;
  const std::size_t stride = std::max<std::size_t>(1, losses.size() / kMostPoints);
  for (std::size_t i = 0; i < losses.size(); ++i)
    if ((i % stride == 0 || i + 1 == losses.size()) && std::isfinite(losses[i]))
      points.push_back(axes(static_cast<double>(i + 1), losses[i]));
  return points;
}

}  // namespace

double mean_of_last(const std::vector<double>& losses, std::size_t count) {
  double sum = 0, finite = 0;
  for (std::size_t i = losses.size() - std::min(count, losses.size()); i < losses.size(); ++i)
    if (std::isfinite(losses[i])) sum += losses[i], ++finite;
  return sum / finite;
}

std::string last_losses_text(const std::vector<double>& losses) {
  const std::size_t count = std::min<std::size_t>(50, losses.size());
  return fixed(mean_of_last(losses, count), 3) + ", mean of the last " + std::to_string(count);
}

std::vector<double> smoothed(const std::vector<double>& losses, std::size_t window) {
  // Prefix sums of losses and of their counts.
  std::vector<double> sums{0}, counts{0}, result;
  for (const double loss : losses) {
    const bool finite = std::isfinite(loss);
    sums.push_back(sums.back() + (finite ? loss : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::size_t before = std::min(window / 2, i), behind = std::min(before, losses.size() - 1 - i);
    const std::size_t first = i - before, last = i + behind + 1;
    result.push_back((sums[last] - sums[first]) / (counts[last] - counts[first]));
  }
  return result;
}

std::string loss_curve_svg(const LossCurve& curve, const std::string& title) {
  const Axes axes(curve);
  display::Svg svg(kWidth, kHeight, title, "loss-curve", kStyle);
  svg.text(kLeft, 22, title, {15, "ink", "start", true});

  double x = kLeft;
  const auto legend = [&](const char* name, const std::string& text) {
    svg.line(x, 36, x + 22, 36, name);
    svg.text(x + 28, 40, text, {12, "faint"});
    x += 28 + 20 + display::text_width(text);
  };
  const std::size_t window = std::max<std::size_t>(11, curve.training.size() / 40);
  if (!curve.training.empty()) {
    legend(kStep, curve.training_name);
    legend(kSmooth, "mean of " + std::to_string(window));
  }
  if (!curve.validation.empty()) legend(kValidation, curve.validation_name);

  axes.draw(svg);
  svg.polyline(kStep, extremes(curve.training, axes));
  svg.polyline(kSmooth, every_so_often(smoothed(curve.training, window), axes));
  std::vector<Point> validation;
  for (const auto& p : curve.validation)
    if (std::isfinite(p.loss)) validation.push_back(axes(static_cast<double>(p.step), p.loss));
  svg.polyline(kValidation, validation);
  if (validation.size() <= 60)
    for (const Point& p : validation) svg.circle(p.x, p.y, 3, std::string(kValidation) + " paper");
  return svg.str();
}

}  // namespace training
