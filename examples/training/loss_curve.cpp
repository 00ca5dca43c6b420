#include "loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

#include "decimals.h"
#include "svg.h"

namespace training {

namespace {

using display::escaped;

// Size of the picture and margins of the plot, in pixels.
constexpr double kWidth = 720, kHeight = 360, kLeft = 56, kRight = 24, kTop = 52, kBottom = 48;
constexpr std::size_t kMostPoints = 600;  // per curve; the eye cannot distinguish more

/// The style besides colours. Names begin with "loss-", because a page may contain other pictures, and font sizes are
/// those of text elements, because the report has a class "faint" with a larger font.
constexpr const char* kStyle = R"(.loss-curve text{font-size:12px}
.loss-curve .loss-title{font-size:15px;font-weight:600}
.loss-step{stroke-opacity:.45}
.loss-smooth,.loss-validation{stroke-width:2}
)";
/// Classes of the curves, each with the series that gives its colour.
constexpr const char *kStep = "loss-step s1", *kSmooth = "loss-smooth s1", *kValidation = "loss-validation s2";

struct Point {
  double x, y;
};

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

  void draw(std::ostream& out) const {
    for (int i = 0; lowest_ + i * tick_ <= highest_ + tick_ / 2; ++i) {
      const double loss = lowest_ + i * tick_;
      const Point a = (*this)(0, loss), b = (*this)(steps_, loss);
      out << "<line class=\"grid\" x1=\"" << a.x << "\" y1=\"" << a.y << "\" x2=\"" << b.x << "\" y2=\"" << b.y
          << "\"/><text class=\"faint\" x=\"" << a.x - 8 << "\" y=\"" << a.y + 4 << "\" text-anchor=\"end\">"
          << number(loss) << "</text>\n";
    }
    const double distance = std::max(tick_distance(steps_, 8), 1.0);
    for (double step = 0; step <= steps_; step += distance) {
      const Point p = (*this)(step, lowest_);
      out << "<line class=\"grid\" x1=\"" << p.x << "\" y1=\"" << p.y << "\" x2=\"" << p.x << "\" y2=\"" << p.y + 5
          << "\"/><text class=\"faint\" x=\"" << p.x << "\" y=\"" << p.y + 19 << "\" text-anchor=\"middle\">"
          << number(step) << "</text>\n";
    }
    out << "<text class=\"faint\" x=\"" << (kLeft + kWidth - kRight) / 2 << "\" y=\"" << kHeight - 10
        << "\" text-anchor=\"middle\">step</text>\n<text class=\"faint\" x=\"16\" y=\""
        << (kTop + kHeight - kBottom) / 2 << "\" text-anchor=\"middle\" transform=\"rotate(-90 16 "
        << (kTop + kHeight - kBottom) / 2 << ")\">loss</text>\n";
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

void draw_line(std::ostream& out, const char* name, const std::vector<Point>& points) {
  if (points.empty()) return;
  out << "<polyline class=\"" << name << "\" points=\"";
  for (std::size_t i = 0; i < points.size(); ++i) out << (i > 0 ? " " : "") << points[i].x << ',' << points[i].y;
  out << "\"/>\n";
}

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
  std::ostringstream out;
  out.precision(6);
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"display loss-curve\" role=\"img\" viewBox=\"0 0 " << kWidth
      << ' ' << kHeight << "\">\n<title>" << escaped(title) << "</title>\n<style>\n"
      << display::style_sheet() << kStyle << "</style>\n<rect class=\"paper\" width=\"" << kWidth << "\" height=\""
      << kHeight << "\"/>\n<text class=\"loss-title ink\" x=\"" << kLeft << "\" y=\"22\">" << escaped(title)
      << "</text>\n";

  double x = kLeft;
  const auto legend = [&](const char* name, const std::string& text) {
    out << "<line class=\"" << name << "\" x1=\"" << x << "\" y1=\"36\" x2=\"" << x + 22
        << "\" y2=\"36\"/><text class=\"faint\" x=\"" << x + 28 << "\" y=\"40\">" << escaped(text) << "</text>\n";
    x += 28 + 20 + display::text_width(text);
  };
  const std::size_t window = std::max<std::size_t>(11, curve.training.size() / 40);
  if (!curve.training.empty()) {
    legend(kStep, curve.training_name);
    legend(kSmooth, "mean of " + std::to_string(window));
  }
  if (!curve.validation.empty()) legend(kValidation, curve.validation_name);

  axes.draw(out);
  draw_line(out, kStep, extremes(curve.training, axes));
  draw_line(out, kSmooth, every_so_often(smoothed(curve.training, window), axes));
  std::vector<Point> validation;
  for (const auto& p : curve.validation)
    if (std::isfinite(p.loss)) validation.push_back(axes(static_cast<double>(p.step), p.loss));
  draw_line(out, kValidation, validation);
  if (validation.size() <= 60)
    for (const Point& p : validation)
      out << "<circle class=\"" << kValidation << " paper\" cx=\"" << p.x << "\" cy=\"" << p.y << "\" r=\"3\"/>\n";
  out << "</svg>\n";
  return out.str();
}

}  // namespace training
