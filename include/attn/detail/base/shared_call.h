// A call whose tasks several threads share, and how a thread is asked to help with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "attn/executor.h"

namespace attn::detail {

// What OpenMP's runtime answers, where the program has one; the flag for OpenMP need not be set here.
#if defined(__ELF__) && defined(__GNUC__)
extern "C" int attn_omp_in_parallel() __asm__("omp_in_parallel") __attribute__((weak));
inline bool inside_openmp_region() { return attn_omp_in_parallel != nullptr && attn_omp_in_parallel() != 0; }
#else
inline bool inside_openmp_region() { return false; }
#endif

/// One call of run(). It lives on its caller's stack: nobody may look at it who has not begun to help before the caller
/// has taken its requests back.
class SharedCall {
 public:
  SharedCall(TaskRef task, Index tasks) : task_(task), tasks_(tasks) {}
  SharedCall(const SharedCall&) = delete;

  /// Whether this thread runs a task. Its own calls then run alone: its siblings already use the other threads.
  static bool is_inside() { return inside_; }

  bool has_tasks() const { return next_.load(std::memory_order_relaxed) < tasks_; }

  /// Takes tasks in ascending order until none is left. The caller is worker 0.
  void work_as_caller() { work(0); }
  void help() { work(1 + helpers_.fetch_add(1, std::memory_order_relaxed)); }

  /// Throws what a task threw first. To be called when nobody helps any more.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work(int worker) {
    inside_ = true;
    try {
      for (Index i = next_++; i < tasks_; i = next_++) task_(i, worker);
    } catch (...) {
      next_ = tasks_;
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    inside_ = false;
  }

  inline static thread_local bool inside_ = false;

  const TaskRef task_;
  const Index tasks_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::atomic<int> helpers_{0};
  // Apart from what everybody reads: each task writes to it.
  alignas(64) std::atomic<Index> next_{0};
};

/// Where one thread is asked for help. It is idle, asked to help with a call, or helping; then also others can see with
/// what. Only an idle one can be asked, and the caller takes the request back if the thread has not begun. So a thread
/// that comes late finds nothing, and no caller waits for it.
class Mailbox {
 public:
  /// Asks for help with a call; false if the thread has something else to do.
  bool ask(SharedCall& call) {
    std::uintptr_t idle = kIdle;
    return content_.load(std::memory_order_relaxed) == kIdle && content_.compare_exchange_strong(idle, asked(call));
  }
  /// In the one order that all see: who goes to sleep says so and then asks this, and who asks for help looks in the
  /// other order whether the thread sleeps.
  bool is_idle() const { return content_.load() == kIdle; }
  bool holds(const SharedCall& call) const { return (content_.load() & ~kBegun) == asked(call); }

  /// Whether nobody will help with the call any more that this thread was asked to help with: it had not begun, or it
  /// has ended.
  bool take_back(const SharedCall& call) {
    std::uintptr_t mine = asked(call);
    return content_.compare_exchange_strong(mine, kIdle) || mine != (asked(call) | kBegun);
  }

  /// Helps with the call that is asked for, if there is one; before(call) comes first.
  template <class Before>
  void help(const Before& before) {
    std::uintptr_t content = content_.load();
    if (content <= kStopped || !content_.compare_exchange_strong(content, content | kBegun)) return;
    SharedCall& call = *reinterpret_cast<SharedCall*>(content);
    before(call);
    call.help();
    content_.store(kIdle);  // from here on the call may be gone
    ++ended_;
    ended_.notify_all();
  }

  /// Returns when take_back() would be true. keep_looking() says for how long to do so without sleeping.
  template <class KeepLooking>
  void wait(const SharedCall& call, const KeepLooking& keep_looking) {
    const std::uintptr_t begun = asked(call) | kBegun;
    while (content_.load() == begun && keep_looking()) {
    }
    for (;;) {
      const unsigned ended = ended_.load();
      if (content_.load() != begun) return;
      ended_.wait(ended);
    }
  }

  /// Waits until the thread has no more to do, and tells it to end.
  template <class Pause>
  void stop(const Pause& pause) {
    for (std::uintptr_t idle = kIdle; !content_.compare_exchange_strong(idle, kStopped); idle = kIdle) pause();
  }
  bool is_stopped() const { return content_.load() == kStopped; }

 private:
  // Calls lie at even addresses.
  static constexpr std::uintptr_t kIdle = 0, kBegun = 1, kStopped = 2;
  static std::uintptr_t asked(const SharedCall& call) { return reinterpret_cast<std::uintptr_t>(&call); }

  std::atomic<std::uintptr_t> content_{kIdle};
  std::atomic<unsigned> ended_{0};  // calls that the thread has helped with; their callers may sleep on it
};

}  // namespace attn::detail
