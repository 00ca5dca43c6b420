// Ctrl-C, so that a training run can save what it has.
#pragma once

#include <csignal>

namespace training {

/// While it lives, the first SIGINT or SIGTERM is only noted; a second one ends the program at once, and removes a file
/// that was being written. Afterwards signals do what they did before. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;

  /// What the program should return after an interrupt, as shells expect: 128 + the signal's number, 130 after Ctrl-C.
  int exit_code() const;

 private:
  using Handler = void (*)(int);
  Handler interrupt_, terminate_;
};

}  // namespace training
