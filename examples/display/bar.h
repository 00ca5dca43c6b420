// A progress bar on standard error.
#pragma once

#include <algorithm>
#include <chrono>
#include <ostream>
#include <string>
#include <utility>

#include "status_line.h"

namespace display {

inline constexpr int kBarColumns = 24;

inline std::string bar_text(double share) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarColumns);
  std::string bar;
  for (int i = 0; i < kBarColumns; ++i) bar += i < full ? "\u2588" : "\u2591";
  return bar;
}

/// Shows what is being done, a bar, and the time left. It appears after two seconds, and only if standard error is a
/// terminal. The destructor erases it.
class Bar {
 public:
  explicit Bar(std::string what)
      : Bar(std::move(what), std::cerr, standard_error_is_terminal(), std::chrono::seconds(2)) {}
  Bar(std::string what, std::ostream& out, bool terminal, StatusLine::Clock::duration silent)
      : what_(std::move(what)), line_(out, terminal, silent) {}

  /// Call after each part of the work.
  template <class Number>
  void update(Number done, Number all) {
    if (done <= 0 || !line_.due()) return;
    const double share = std::min(static_cast<double>(done) / static_cast<double>(all), 1.0);
    line_.draw(what_ + ' ' + bar_text(share) + ' ' + time_left(share, line_.seconds()));
  }

  /// Erases the line, so that other text can be printed.
  void clear() { line_.clear(); }

 private:
  std::string what_;
  StatusLine line_;
};

}  // namespace display
