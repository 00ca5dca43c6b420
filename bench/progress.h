// Progress reports on standard error.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "duration.h"
#include "table.h"

namespace bench {

/// Shows the progress of a run and the time left. On a terminal it rewrites one line; elsewhere, e.g. in a log, it
/// prints one plain line at the start of each row.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `shares`: estimated duration of each row, in any unit.
  explicit Progress(std::vector<double> shares, std::FILE* out = stderr)
      : Progress(std::move(shares), out, isatty(fileno(out)) != 0) {}
  explicit Progress(std::size_t rows) : Progress(std::vector<double>(rows, 1.0)) {}
  Progress(std::vector<double> shares, std::FILE* out, bool terminal)
      : shares_(std::move(shares)),
        all_(std::accumulate(shares_.begin(), shares_.end(), 0.0)),
        out_(out),
        terminal_(terminal) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin_row(const std::string& row) {
    if (at_ > 0) done_ += shares_[at_ - 1];
    of_row_ = 0;
    row_ = "[";
    row_.append(std::to_string(++at_)).append("/").append(std::to_string(shares_.size())).append("] ").append(row);
    if (terminal_) return draw("");
    std::fprintf(out_, "%s%s\n", row_.c_str(), time_left().c_str());
    std::fflush(out_);
  }

  /// Shows in a few words what the row is doing.
  void say(const std::string& what) { draw(": " + what); }

  /// Shows how many of the row's rounds are done.
  void round(int done, int rounds) {
    of_row_ = static_cast<double>(done) / rounds;
    const auto now = Clock::now();
    if (now - drawn_at_ < kRedraw) return;
    draw(": round " + std::to_string(done + 1) + " of " + std::to_string(rounds));
  }

  void clear() {
    if (shown_ > 0) std::fprintf(out_, "\r%*s\r", static_cast<int>(shown_), "");
    shown_ = 0;
  }

 private:
  static constexpr std::chrono::milliseconds kRedraw{100};

  void draw(const std::string& what) {
    if (!terminal_) return;
    drawn_at_ = Clock::now();
    clear();
    const std::string line = row_ + what + time_left();
    std::fputs(line.c_str(), out_);
    std::fflush(out_);
    shown_ = width(line);
  }

  /// Returns ", 1:20 left"; empty until some work is done.
  std::string time_left() const {
    const double done = done_ + (at_ > 0 ? of_row_ * shares_[at_ - 1] : 0);
    if (done <= 0) return "";
    const double so_far = std::chrono::duration<double>(Clock::now() - start_).count();
    return ", " + display::duration_text(so_far * (all_ - done) / done) + " left";
  }

  std::vector<double> shares_;
  double all_, done_ = 0, of_row_ = 0;
  std::size_t at_ = 0, shown_ = 0;
  std::string row_;
  std::FILE* out_;
  bool terminal_;
  Clock::time_point start_ = Clock::now(), drawn_at_ = start_ - kRedraw;
};

}  // namespace bench
