// A call whose tasks several threads share, and the mailboxes through which threads are asked to help.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <new>

#include "attn/core/base/check.h"
#include "attn/core/base/sync.h"
#include "attn/executor.h"

namespace attn::detail {

// Queries OpenMP's runtime if the program has one, even in units compiled without the flag for OpenMP.
#if defined(__ELF__) && defined(__GNUC__)
extern "C" int attn_omp_in_parallel() __asm__("omp_in_parallel") __attribute__((weak));
inline bool inside_openmp_region() { return attn_omp_in_parallel != nullptr && attn_omp_in_parallel() != 0; }
#else
inline bool inside_openmp_region() { return false; }
#endif

/// One call of run(). It lives on its caller's stack: a thread may access it only if it has begun to help before the
/// caller withdrew its requests.
///
/// Each worker begins with its own share, which is a run of neighbouring tasks, and then takes tasks of the workers
/// after it. So a thread usually works on the same rows in successive calls, and finds them in its caches. With one
/// counter for all workers, a single query over 8 heads of 1024 keys took 16 threads (each with an L2 of 2 MiB) 1.6
/// times as long, and a training step of a small GPT took 8 threads 1.15 times as long.
class SharedCall {
 public:
  SharedCall(TaskRef task, Index tasks, int workers)
      : task_(task), shares_(static_cast<int>(std::min<Index>({workers, kMostShares, tasks}))) {
    Index begin = 0;
    for (int i = 0; i < shares_; ++i) {
      const Index end = begin + tasks / shares_ + (i < tasks % shares_);
      ::new (share_ + i) Share{begin, end};
      begin = end;
    }
  }
  SharedCall(const SharedCall&) = delete;

  /// Whether this thread is running a task. Calls from inside a task run on one thread: the other tasks already use the
  /// other threads.
  static bool is_inside() { return inside_; }

  bool has_tasks() const { return !is_taken_.load(std::memory_order_relaxed); }

  /// Takes tasks until none is left. The caller is worker 0; two threads that work at the same time have different
  /// numbers, less than the number of workers.
  void work(int worker) {
    inside_ = true;
    run_and_catch(
        [&] {
          for (int i = 0; i < shares_; ++i) {
            Share& share = share_[(worker + i) % shares_];
            while (share.has_tasks()) {
              const Index task = share.next++;
              if (task < share.end) task_(task, worker);
            }
          }
        },
        [&] {
          for (int i = 0; i < shares_; ++i) share_[i].next = share_[i].end;
          if (!failed_.test_and_set()) error_ = std::current_exception();
        });
    is_taken_.store(true, std::memory_order_relaxed);
    inside_ = false;
  }

  /// Rethrows the first exception of a task. Call it only after all helpers have finished.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr int kMostShares = 64;  // 4 KiB of stack

  struct alignas(64) Share {  // its own cache line, since each task writes to it
    bool has_tasks() const { return next.load(std::memory_order_relaxed) < end; }
    std::atomic<Index> next;
    Index end;
  };

  inline static thread_local bool inside_ = false;

  const TaskRef task_;
  const int shares_;
  std::exception_ptr error_;
  // No atomic<bool>: g++ on RISC-V compiles its exchange() to a call into libatomic, which users would have to link.
  std::atomic_flag failed_;
  std::atomic<bool> is_taken_{false};  // all tasks have been taken
  union {
    Share share_[kMostShares];  // of which only shares_ exist
  };
};

/// The mailbox of one thread. The thread is idle, asked to help with a call, or helping with it; in the last two cases,
/// the mailbox holds the address of that call. Only an idle thread can be asked, and the caller withdraws the request
/// if the thread has not begun. So a thread that is too late finds nothing, and no caller waits for it.
class Mailbox {
 public:
  /// Asks the thread to help with `call` as worker number `worker`; returns false if the thread is not idle.
  bool ask(SharedCall& call, int worker) {
    std::uintptr_t idle = kIdle;
    if (content_.load(std::memory_order_relaxed) != kIdle || !content_.compare_exchange_strong(idle, kReserved))
      return false;
    worker_ = worker;
    content_.store(asked(call));
    return true;
  }
  /// Sequentially consistent: a thread that goes to sleep sets its flag and then checks this, and a caller posts its
  /// request and then checks the flag. So at least one of them sees what the other has done.
  bool is_idle() const {
    const std::uintptr_t content = content_.load();
    return content == kIdle || content == kReserved;  // kReserved: the request is about to come
  }
  bool holds(const SharedCall& call) const { return (content_.load() & ~kBegun) == asked(call); }

  /// Withdraws a request. True if the thread will not access the call any more, because it had not begun or has ended.
  bool take_back(const SharedCall& call) {
    std::uintptr_t mine = asked(call);
    return content_.compare_exchange_strong(mine, kIdle) || mine != (asked(call) | kBegun);
  }

  /// Helps with the requested call, if there is one, after calling before(call).
  template <class Before>
  void help(const Before& before) {
    std::uintptr_t content = content_.load();
    if (content <= kReserved || !content_.compare_exchange_strong(content, content | kBegun)) return;
    SharedCall& call = *reinterpret_cast<SharedCall*>(content);
    before(call);
    call.work(worker_);
    content_.store(kIdle);  // the call may be gone from here on
    ++ended_;
    ended_.notify_all();
  }

  /// Waits until take_back() would return true. Spins while keep_looking() returns true, and then sleeps.
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

  /// Waits until the thread is idle, and tells it to end.
  template <class Pause>
  void stop(const Pause& pause) {
    for (std::uintptr_t idle = kIdle; !content_.compare_exchange_strong(idle, kStopped); idle = kIdle) pause();
  }
  bool is_stopped() const { return content_.load() == kStopped; }

 private:
  // Addresses of calls are even, so that kBegun can be added to them. While the content is kReserved, a caller is
  // writing its request.
  static constexpr std::uintptr_t kIdle = 0, kBegun = 1, kStopped = 2, kReserved = 4;
  static std::uintptr_t asked(const SharedCall& call) { return reinterpret_cast<std::uintptr_t>(&call); }

  std::atomic<std::uintptr_t> content_{kIdle};
  int worker_ = 0;
  Waitable<unsigned> ended_{0};  // number of calls that the thread has helped with; their callers may sleep on it
};

}  // namespace attn::detail
