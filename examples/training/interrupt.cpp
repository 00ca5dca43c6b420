#include "interrupt.h"

#include <atomic>

#include "new_file.h"

namespace training {

namespace {

/// The signal that was received, or 0. Any thread may run the handler, so the variable must be visible to all threads
/// and lock-free.
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) {
  if (noted.exchange(signal) == 0) return;
  nn::remove_unfinished();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

Interrupt::Interrupt() {
  noted = 0;
  interrupt_ = std::signal(SIGINT, note_signal);
  terminate_ = std::signal(SIGTERM, note_signal);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
}

bool Interrupt::requested() const { return noted != 0; }

int Interrupt::exit_code() const { return 128 + noted; }

}  // namespace training
