// What runs the tasks of a call: serial(), threads(), or an executor of your own.
#pragma once

#include <algorithm>
#include <memory>

#include "attn/detail/base/borrowed_pool.h"
#include "attn/detail/base/check.h"
#include "attn/detail/base/pool.h"
#ifndef ATTN_EXTERN_TEMPLATES  // see attn/instantiate.h
#include "attn/detail/base/thread_pool.h"
#endif

namespace attn {

/// Runs everything on the calling thread.
inline Executor serial() {
  static const Executor executor(std::make_shared<detail::SerialBackend>());
  return executor;
}

/// How the threads of a pool wait.
struct ThreadOptions {
  /// How long an idle thread looks out for the next call before it sleeps; waking one that sleeps takes 5 to 50 µs. A
  /// thread that has slept for more than twice that time looks out for a sixteenth of it. 0 suits a machine that others
  /// need. Threads do not look out where as many of the process are awake as there are processors for it, or where a
  /// container limits its processor time.
  double spin_microseconds = 100;
};

/// A pool of `workers` threads, counting the caller. Make it once: the pool lives as long as a copy of the executor
/// does. A call asks for no more of them than its work pays for; see Executor::Backend::workers_for(). After fork() the
/// child's calls run on the calling thread alone.
/// @throws std::invalid_argument unless workers is positive and the time finite and not negative; std::bad_alloc, or
/// std::system_error if the operating system has no more threads. No thread is left running then.
inline Executor threads(int workers, ThreadOptions options = {}) {
  detail::require(workers > 0, "threads(", workers, "): there must be at least one worker, the caller");
  detail::require(options.spin_microseconds >= 0 && options.spin_microseconds <= 1e9, "threads(", workers,
                  "): spin_microseconds is ", options.spin_microseconds, "; it must be from 0 to 1e9");
  return workers == 1 ? serial() : Executor(detail::make_pool(workers, options.spin_microseconds));
}

/// Runs tasks on the threads of a pool that the program already has, such as an Eigen::ThreadPool, and on the caller.
/// The pool must outlive all calls.
template <detail::TaskPool Pool>
Executor threads(Pool& pool) {
  return Executor(std::make_shared<detail::BorrowedPool<Pool>>(pool));
}

/// The pool of the process, started at first use: as many workers as the process may keep processors busy at the same
/// time, by the affinity mask of its first thread and the quota of its container (cgroup), too.
inline Executor threads() {
  static const Executor pool = threads(detail::usable_cpus());
  return pool;
}

inline const Executor::Backend& Executor::backend() const { return backend_ ? *backend_ : *threads().backend_; }

namespace detail {

/// What a call has to do.
struct Work {
  double flops;
  double bytes = 0;  ///< of numbers that are read once

  /// What one thread takes for it, roughly: cores differ by a factor of ten, and the number of workers goes with the
  /// root of the time. 50 flops a nanosecond are half of what AVX2 reaches, and a third of AVX-512; 20 bytes lie
  /// between what a core reads of its memory, 10, and of a large shared cache, 25 to 80.
  double microseconds() const {
    constexpr double kFlops = 50e3, kBytes = 20e3, kNear = 1 << 20;  // in a core's own cache
    return std::max(flops / kFlops, bytes > kNear ? bytes / kBytes : 0);
  }
};

/// What it takes to load a number and to store it elsewhere, as flops of Work: a nanosecond.
constexpr double kFlopsToMove = 50;

/// The workers of a call: as many of its executor's as its work pays for. The executor must live as long.
class Workers {
 public:
  Workers(const Work& work, const Executor& executor)
      : executor_(&executor), microseconds_(work.microseconds()), count_(count_for(microseconds_, executor)) {}

  int count() const { return count_; }
  /// What the work takes one thread, roughly.
  double microseconds() const { return microseconds_; }

  /// Calls task(i, worker) for every i in [0, tasks), with workers in [0, count()).
  void run(Index tasks, TaskRef task) const { run(tasks, microseconds_, task); }
  /// The same where this is a short part of the work.
  void run(Index tasks, double microseconds, TaskRef task) const {
    if (count_ > 1 || !executor_->is_default()) return executor_->run_with(count_, microseconds, tasks, task);
    SerialBackend().run(tasks, task);
  }

 private:
  static int count_for(double microseconds, const Executor& executor) {
    // Who names no executor gets threads where they pay even though they sleep.
    if (executor.is_default() && microseconds < 2 * kMicrosecondsToWake) return 1;
    const int count = executor.workers_for(microseconds);
    require(count > 0, "the executor has ", count, " workers; there must be at least one, the caller");
    return count;
  }

  const Executor* executor_;
  double microseconds_;
  int count_;
};

}  // namespace detail

}  // namespace attn
