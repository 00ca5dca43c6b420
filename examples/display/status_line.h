// A line of text on standard error that is updated in place.
#pragma once

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>

#include "duration.h"

namespace display {

inline bool standard_error_is_terminal() { return isatty(STDERR_FILENO) == 1; }

/// Rewrites one line of a terminal, at most ten times a second; other outputs see nothing. The destructor erases it.
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silent`: the time before the first line.
  explicit StatusLine(std::ostream& out = std::cerr, bool terminal = standard_error_is_terminal(),
                      Clock::duration silent = {})
      : out_(out), terminal_(terminal), start_(Clock::now()), next_(start_ + silent) {}
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  std::ostream& out() { return out_; }
  bool on_terminal() const { return terminal_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// Whether a tenth of a second has passed since the last line.
  bool due() const { return terminal_ && Clock::now() >= next_; }

  /// Shows a text, whether it is due or not.
  void draw(const std::string& text) {
    if (!terminal_) return;
    clear();
    out_ << text << std::flush;
    drawn_ = true;
    next_ = Clock::now() + std::chrono::milliseconds(100);
  }

  /// Erases the line, so that other text can be printed. The next line is due at once.
  void clear() {
    if (!drawn_) return;
    out_ << "\r\x1b[K" << std::flush;
    drawn_ = false;
    next_ = Clock::now();
  }

  /// Leaves the line and begins a new one.
  void keep() {
    if (drawn_) out_ << '\n' << std::flush;
    drawn_ = false;
  }

 private:
  std::ostream& out_;
  bool terminal_, drawn_ = false;
  Clock::time_point start_, next_;
};

/// Returns the time that is left after `share` of the work, which took `seconds`: "1:20 left".
inline std::string time_left(double share, double seconds) {
  return duration_text(seconds * (1 - share) / share) + " left";
}

}  // namespace display
