// What a waiting person sees on standard error.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "table.h"

namespace bench {

/// On a terminal one line that is rewritten; elsewhere, e.g. in a log, one plain line when a row begins.
class Progress {
 public:
  explicit Progress(std::size_t rows) : rows_(rows) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin_row(const std::string& row) {
    row_ = "[" + std::to_string(++at_) + "/" + std::to_string(rows_) + "] " + row;
    if (!terminal_) std::fprintf(stderr, "%s\n", row_.c_str());
  }

  void say(const std::string& what) {
    if (!terminal_) return;
    clear();
    const std::string line = row_ + ": " + what;
    std::fputs(line.c_str(), stderr);
    shown_ = width(line);
  }

  void clear() {
    if (shown_ > 0) std::fprintf(stderr, "\r%*s\r", static_cast<int>(shown_), "");
    shown_ = 0;
  }

 private:
  std::size_t rows_, at_ = 0, shown_ = 0;
  std::string row_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
};

}  // namespace bench
