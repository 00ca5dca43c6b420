// Handling of Ctrl-C, so that a training run can save its state.
#pragma once

#include <csignal>

namespace training {

/// While an Interrupt exists, the first SIGINT or SIGTERM is only recorded; a second one ends the program at once, and
/// removes a file that is being written. The destructor restores the previous handlers. Only one may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;

  /// Returns the program's exit code after an interrupt, as shells expect: 128 + the signal's number, 130 after Ctrl-C.
  int exit_code() const;

 private:
  using Handler = void (*)(int);
  Handler interrupt_, terminate_;
};

}  // namespace training
