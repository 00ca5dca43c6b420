// The comparison as a picture: one slot of bars for each row of work, speed on the left, memory on the right.
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "report.h"
#include "svg.h"

namespace bench {

namespace {

constexpr std::array<std::string_view, 4> kBarColours{"#b4bcc8", "#2468a8", "#3a9a78", "#d08a30"};
constexpr std::string_view kPeakColour = "#c03a2b", kGrid = "#e6e8ec", kFaint = "#70757d";

constexpr double kBar = 13, kGap = 14;  // height of a bar, space between slots
constexpr double kLabels = 24, kSpeed = 226, kSpeedWidth = 520, kMemory = 830, kMemoryWidth = 290, kWidth = 1180;

std::string_view colour(std::size_t contestant) { return kBarColours[contestant % kBarColours.size()]; }

/// 1, 2 or 5 times a power of ten: about `target` steps up to `max`.
double round_step(double max, double target) {
  const double power = std::pow(10, std::floor(std::log10(max / target)));
  const double rest = max / target / power;
  return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 4> kUnits{" B", " KiB", " MiB", " GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fixed(bytes, bytes < 10 && unit > 0 && bytes != std::floor(bytes) ? 1 : 0) + kUnits[unit];
}

/// A logarithmic axis of bytes from 1 KiB; what is less is drawn as nothing.
struct BytesAxis {
  static constexpr double kFirst = 10, kStep = 5;  // powers of two

  double last;

  double x(double bytes) const {
    return kMemory + kMemoryWidth * std::clamp((std::log2(std::max(bytes, 1.0)) - kFirst) / (last - kFirst), 0.0, 1.0);
  }
};

class Chart {
 public:
  explicit Chart(const Report& report)
      : report_(report),
        top_(118 + 17 * static_cast<double>(report.conditions.size())),
        slot_(kBar * static_cast<double>(report.contestants.size()) + kGap),
        bottom_(top_ + slot_ * static_cast<double>(report.rows.size())),
        svg_(kWidth, bottom_ + 62) {
    double most_bytes = 1, most_speed = 0;
    for (const RowResult& row : report.rows) {
      most_speed = std::max(most_speed, row.fma_peak);
      for (const auto& m : row.of)
        if (m) {
          most_bytes = std::max(most_bytes, static_cast<double>(m->extra_bytes));
          most_speed = std::max(most_speed, m->flops_per_second);
        }
    }
    most_speed_ = 1.04 * most_speed;
    axis_.last =
        BytesAxis::kFirst +
        BytesAxis::kStep * std::max(std::ceil((std::log2(most_bytes) - BytesAxis::kFirst) / BytesAxis::kStep), 1.0);
  }

  void draw() {
    head();
    grid();
    for (std::size_t r = 0; r < report_.rows.size(); ++r)
      slot(report_.rows[r], top_ + slot_ * static_cast<double>(r) + kGap / 2);
  }

  void save(const std::string& path) const { svg_.save(path); }

 private:
  double speed_x(double rate) const { return kSpeed + kSpeedWidth * rate / most_speed_; }

  void head() {
    svg_.text(kLabels, 36, "Exact attention on the CPU: " + versus(), {20, "#111", "start", true});
    double y = 58;
    for (const auto& line : report_.conditions) {
      svg_.text(kLabels, y, line, {12, kFaint});
      y += 17;
    }
    y += 14;
    double x = kLabels;
    for (std::size_t c = 0; c < report_.contestants.size(); ++c) {
      svg_.rect(x, y - 10, 18, 11, colour(c), 2);
      svg_.text(x + 24, y, report_.contestants[c]);
      x += 44 + 8 * static_cast<double>(report_.contestants[c].size());
    }
    svg_.line(x, y - 4, x + 20, y - 4, kPeakColour, 2, "4 3");
    svg_.text(x + 26, y, "FMA peak, measured beside each row");
    svg_.text(kSpeed, top_ - 10, "Speed: longer is better", {13, "#111", "start", true});
    svg_.text(kMemory, top_ - 10, "Extra memory: shorter is better", {13, "#111", "start", true});
  }

  std::string versus() const {
    std::ostringstream all;
    for (std::size_t c = 0; c < report_.contestants.size(); ++c)
      all << (c == 0 ? "" : c == 1 ? " against " : " and ") << report_.contestants[c];
    all << ", " << report_.threads << (report_.threads == 1 ? " thread" : " threads");
    return all.str();
  }

  void grid() {
    const double step = round_step(most_speed_ / 1e9, 6);
    for (double rate = 0; rate * 1e9 <= most_speed_; rate += step) {
      const double x = speed_x(rate * 1e9);
      svg_.line(x, top_, x, bottom_, kGrid);
      svg_.text(x, bottom_ + 17, fixed(rate, step < 1 ? 1 : 0), {11, kFaint, "middle"});
    }
    for (double power = BytesAxis::kFirst; power <= axis_.last; power += BytesAxis::kStep) {
      const double x = axis_.x(std::exp2(power));
      svg_.line(x, top_, x, bottom_, kGrid);
      svg_.text(x, bottom_ + 17, bytes_text(std::exp2(power)), {11, kFaint, "middle"});
    }
    svg_.text(kSpeed + kSpeedWidth / 2, bottom_ + 37, "GFLOP/s: 4 · B · H · kept (query, key) pairs · D / time",
              {12, "#333", "middle"});
    svg_.text(kMemory + kMemoryWidth / 2, bottom_ + 37, "heap at its highest during the call (log scale)",
              {12, "#333", "middle"});
  }

  void slot(const RowResult& row, double y) {
    const double middle = y + (slot_ - kGap) / 2;
    const Workload& w = row.work;
    std::ostringstream lengths, rest;
    lengths << "N = " << w.q_len;
    if (w.kv_len != w.q_len) lengths << ", M = " << w.kv_len;
    lengths << ", D = " << w.head_dim;
    if (w.v_dim != w.head_dim) lengths << '/' << w.v_dim;
    if (w.layout != Layout::bhsd) lengths << ", " << name(w.layout);
    rest << name(w.variant) << ", " << name(w.scalar) << ", B=" << w.batch << " H=" << w.heads;
    if (w.kv_heads != w.heads) rest << '/' << w.kv_heads;
    svg_.text(kSpeed - 12, middle - 2, lengths.str(), {12.5, "#111", "end", true});
    svg_.text(kSpeed - 12, middle + 12, rest.str(), {11, kFaint, "end"});

    for (std::size_t c = 0; c < row.of.size(); ++c, y += kBar) {
      const auto& m = row.of[c];
      if (!m) {
        svg_.text(kSpeed + 5, y + 10, "not run: " + std::string(row.declined[c]), {11, kFaint});
        continue;
      }
      bar(kSpeed, speed_x(m->flops_per_second), y, c);
      std::string text = fixed(m->flops_per_second / 1e9, 0);
      if (c > 0 && row.of[0]) text += ", " + fixed(row.of[0]->seconds / m->seconds, 2) + " × as fast";
      svg_.text(speed_x(m->flops_per_second) + 5, y + 10, text, {11, "#222", "start", c > 0});
      if (!memory_is_counted()) continue;
      const double x = axis_.x(static_cast<double>(m->extra_bytes));
      bar(kMemory, x, y, c);
      svg_.text(x + 5, y + 10, bytes_text(static_cast<double>(m->extra_bytes)), {11, "#222"});
    }
    const double peak = speed_x(row.fma_peak);
    svg_.line(peak, middle - slot_ / 2, peak, middle + slot_ / 2, kPeakColour, 2, "4 3");
  }

  void bar(double from, double to, double y, std::size_t contestant) {
    svg_.rect(from, y + 0.5, std::max(to - from, 0.5), kBar - 1, colour(contestant), 1.5);
  }

  const Report& report_;
  double top_, slot_, bottom_, most_speed_ = 0;
  BytesAxis axis_{};
  Svg svg_;
};

}  // namespace

void write_chart(const std::string& path, const Report& report) {
  Chart chart(report);
  chart.draw();
  chart.save(path);
}

}  // namespace bench
