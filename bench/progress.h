// Progress reports on standard error.
#pragma once

#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "status_line.h"

namespace bench {

/// Shows the progress of a run and the time left. On a terminal it rewrites one line; elsewhere, e.g. in a log, it
/// prints one plain line at the start of each row.
class Progress {
 public:
  /// `shares`: estimated duration of each row, in any unit.
  explicit Progress(std::vector<double> shares)
      : Progress(std::move(shares), std::cerr, display::standard_error_is_terminal()) {}
  explicit Progress(std::size_t rows) : Progress(std::vector<double>(rows, 1.0)) {}
  Progress(std::vector<double> shares, std::ostream& out, bool terminal)
      : shares_(std::move(shares)), all_(std::accumulate(shares_.begin(), shares_.end(), 0.0)), line_(out, terminal) {}

  void begin_row(const std::string& row) {
    if (at_ > 0) done_ += shares_[at_ - 1];
    of_row_ = 0;
    row_ = "[";
    row_.append(std::to_string(++at_)).append("/").append(std::to_string(shares_.size())).append("] ").append(row);
    if (!line_.on_terminal()) line_.out() << row_ << time_left() << std::endl;
    draw("");
  }

  /// Shows in a few words what the row is doing.
  void say(const std::string& what) { draw(": " + what); }

  /// Shows how many of the row's rounds are done.
  void round(int done, int rounds) {
    of_row_ = static_cast<double>(done) / rounds;
    if (line_.due()) draw(": round " + std::to_string(done + 1) + " of " + std::to_string(rounds));
  }

  void clear() { line_.clear(); }

 private:
  void draw(const std::string& what) { line_.draw(row_ + what + time_left()); }

  /// Returns ", 1:20 left"; empty until some work is done.
  std::string time_left() const {
    const double done = done_ + (at_ > 0 ? of_row_ * shares_[at_ - 1] : 0);
    return done > 0 ? ", " + display::time_left(done / all_, line_.seconds()) : "";
  }

  std::vector<double> shares_;
  double all_, done_ = 0, of_row_ = 0;
  std::size_t at_ = 0;
  std::string row_;
  display::StatusLine line_;
};

}  // namespace bench
