#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace training {

namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr int kBarColumns = 24;

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar_text(double share) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarColumns);
  std::string bar;
  for (int i = 0; i < kBarColumns; ++i) bar += i < full ? "\u2588" : "\u2591";
  return bar + ' ';
}

}  // namespace

bool standard_error_is_terminal() { return isatty(STDERR_FILENO) == 1; }

Progress::Progress(Index steps, Index done)
    : Progress(steps, done, std::cerr, standard_error_is_terminal(), terminal_columns()) {}

Progress::Progress(Index steps, Index done, std::ostream& out, bool terminal, int columns)
    : steps_(steps),
      first_(done),
      done_(done),
      out_(out),
      terminal_(terminal),
      columns_(columns),
      start_(Clock::now()),
      drawn_at_(start_ - kRedraw) {}

void Progress::update(Index done, double loss, Index tokens) {
  const auto tenth = [this](Index step) { return step * 10 / std::max<Index>(steps_, 1); };
  const bool passes_tenth = tenth(done) > tenth(done_);
  done_ = done;
  loss_ = loss;
  tokens_ += tokens;
  if (!terminal_) {
    if (passes_tenth) out_ << line(false) << '\n' << std::flush;
    return;
  }
  const auto now = Clock::now();
  if (now - drawn_at_ < kRedraw && done != steps_) return;
  drawn_at_ = now;
  clear();
  // A line that wraps could not be overwritten.
  out_ << line(columns_ > static_cast<int>(line(false).size()) + kBarColumns + 1) << std::flush;
  drawn_ = true;
}

void Progress::say(const std::string& text) {
  clear();
  out_ << text << '\n' << std::flush;
  drawn_at_ -= kRedraw;
}

void Progress::finish() {
  if (drawn_) out_ << '\n' << std::flush;
  drawn_ = false;
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

double Progress::tokens_per_second() const { return static_cast<double>(tokens_) / std::max(seconds(), 1e-9); }

std::string Progress::line(bool with_bar) const {
  const double share = steps_ > 0 ? static_cast<double>(done_) / static_cast<double>(steps_) : 1;
  const double left =
      done_ > first_ ? seconds() * static_cast<double>(steps_ - done_) / static_cast<double>(done_ - first_) : 0;
  char text[160];
  std::snprintf(text, sizeof text, "%td/%td  loss %.3f  %.0f tokens/s  %s left", done_, steps_, loss_,
                tokens_per_second(), duration_text(left).c_str());
  return (with_bar ? bar_text(share) : "") + text;
}

void Progress::clear() {
  if (drawn_) out_ << "\r\x1b[K";
  drawn_ = false;
}

}  // namespace training
