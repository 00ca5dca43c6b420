// A progress bar on standard error.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <utility>

#include "duration.h"

namespace display {

/// A line that is updated in place: what is being done, a bar, and the time left. It appears after two seconds, and
/// only if standard error is a terminal. The destructor erases it.
class Bar {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Bar(std::string what)
      : Bar(std::move(what), std::cerr, isatty(STDERR_FILENO) == 1, std::chrono::seconds(2)) {}
  Bar(std::string what, std::ostream& out, bool terminal, Clock::duration silent)
      : what_(std::move(what)), out_(out), terminal_(terminal), start_(Clock::now()), next_(start_ + silent) {}
  ~Bar() { clear(); }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  /// Call after each part of the work.
  template <class Number>
  void update(Number done, Number all) {
    const auto now = Clock::now();
    if (!terminal_ || now < next_ || done <= 0) return;
    next_ = now + std::chrono::milliseconds(100);
    const double share = std::min(static_cast<double>(done) / static_cast<double>(all), 1.0),
                 seconds = std::chrono::duration<double>(now - start_).count();
    std::string bar;
    for (int i = 0; i < 24; ++i) bar += i < static_cast<int>(24 * share) ? "\u2588" : "\u2591";
    clear();
    out_ << what_ << ' ' << bar << ' ' << duration_text(seconds * (1 - share) / share) << " left" << std::flush;
    drawn_ = true;
  }

  /// Erases the line, so that other text can be printed.
  void clear() {
    if (drawn_) out_ << "\r\x1b[K" << std::flush;
    drawn_ = false;
  }

 private:
  std::string what_;
  std::ostream& out_;
  bool terminal_, drawn_ = false;
  Clock::time_point start_, next_;
};

}  // namespace display
