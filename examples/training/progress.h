// Progress of a training run, on standard error.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>

#include "status_line.h"

namespace training {

using display::standard_error_is_terminal;

/// Shows a line that is updated in place: a bar, the step, the loss, tokens per second and the time left. If the output
/// is not a terminal, prints a plain line at each tenth of the steps instead.
class Progress {
 public:
  using Index = std::ptrdiff_t;

  /// Starts the progress of a run of `steps` steps, of which `done` were done before.
  explicit Progress(Index steps, Index done = 0);
  Progress(Index steps, Index done, std::ostream& out, bool terminal, int columns = 80);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call after each step, with the number of steps done, the loss, and the number of tokens in the step.
  void update(Index done, double loss, Index tokens);

  /// Prints lines that stay above the bar: a validation loss, a sample.
  void say(const std::string& text);

  /// Ends the bar's line. Further updates begin a new one.
  void finish();

  /// Returns the seconds since the start of this run.
  double seconds() const { return line_.seconds(); }
  double tokens_per_second() const;

 private:
  std::string line(bool with_bar) const;

  Index steps_, first_, done_;
  int columns_;
  double loss_ = 0;
  Index tokens_ = 0;
  display::StatusLine line_;
};

using display::duration_text;

}  // namespace training
