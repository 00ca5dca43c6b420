#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "bar.h"

namespace training {

namespace {

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(Index steps, Index done)
    : Progress(steps, done, std::cerr, standard_error_is_terminal(), terminal_columns()) {}

Progress::Progress(Index steps, Index done, std::ostream& out, bool terminal, int columns)
    : steps_(steps), first_(done), done_(done), columns_(columns), line_(out, terminal) {}

void Progress::update(Index done, double loss, Index tokens) {
  const auto tenth = [this](Index step) { return step * 10 / std::max<Index>(steps_, 1); };
  const bool passes_tenth = tenth(done) > tenth(done_);
  done_ = done;
  loss_ = loss;
  tokens_ += tokens;
  if (!line_.on_terminal()) {
    if (passes_tenth) line_.out() << line(false) << '\n' << std::flush;
    return;
  }
  // A line that wraps could not be overwritten.
  const bool fits = columns_ > static_cast<int>(line(false).size()) + display::kBarColumns + 1;
  if (line_.due() || done == steps_) line_.draw(line(fits));
}

void Progress::say(const std::string& text) {
  line_.clear();
  line_.out() << text << '\n' << std::flush;
}

void Progress::finish() { line_.keep(); }

double Progress::tokens_per_second() const { return static_cast<double>(tokens_) / std::max(seconds(), 1e-9); }

std::string Progress::line(bool with_bar) const {
  const double share = steps_ > 0 ? static_cast<double>(done_) / static_cast<double>(steps_) : 1;
  const double left =
      done_ > first_ ? seconds() * static_cast<double>(steps_ - done_) / static_cast<double>(done_ - first_) : 0;
  char text[160];
  std::snprintf(text, sizeof text, "%td/%td  loss %.3f  %.0f tokens/s  %s left", done_, steps_, loss_,
                tokens_per_second(), duration_text(left).c_str());
  return (with_bar ? display::bar_text(share) + ' ' : "") + text;
}

}  // namespace training
