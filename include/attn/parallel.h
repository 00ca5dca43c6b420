// Executors that run the tasks of a call: serial() and threads().
#pragma once

#include <algorithm>
#include <memory>

#include "attn/core/base/borrowed_pool.h"
#include "attn/core/base/check.h"
#include "attn/core/base/pool.h"
#if !defined(ATTN_EXTERN_TEMPLATES) && !defined(ATTN_NO_THREADS)  // see attn/instantiate.h
#include "attn/core/base/thread_pool.h"
#endif

namespace attn {

/// Returns an executor that runs everything on the calling thread.
inline Executor serial() {
  static const Executor executor(std::make_shared<detail::SerialBackend>());
  return executor;
}

/// How the threads of a pool wait.
struct ThreadOptions {
  /// How long an idle thread spins for the next call before it sleeps; waking a sleeping thread takes 5 to 50 µs. After
  /// a wait (spinning and sleeping) of more than twice this time, a thread spins for only a sixteenth of this time. 0
  /// suits a machine shared with other programs. Threads do not spin while the process has as many awake threads as
  /// processors, or if a container limits its processor time.
  double spin_microseconds = 100;
};

/// Creates a pool of `workers` threads, including the caller. Create it once: the pool lives as long as any copy of the
/// executor does. A call uses no more threads than are worthwhile for its amount of work; see
/// Executor::Backend::workers_for(). After fork(), calls in the child run on the calling thread alone. In programs
/// without threads (ATTN_NO_THREADS) all calls run on the calling thread.
/// @throws std::invalid_argument unless workers is positive and options.spin_microseconds is in 0..1e9; std::bad_alloc,
/// or std::system_error if the operating system cannot start a thread. In all these cases no thread is left running.
inline Executor threads(int workers, ThreadOptions options = {}) {
  detail::require(workers > 0, "threads(", workers, "): at least one worker is needed, the calling thread");
  detail::require(options.spin_microseconds >= 0 && options.spin_microseconds <= 1e9, "threads(", workers,
                  "): spin_microseconds must be in 0..1e9, but is ", options.spin_microseconds);
  return workers == 1 ? serial() : Executor(detail::make_pool(workers, options.spin_microseconds));
}

/// Returns an executor that runs tasks on the threads of an existing pool, such as an Eigen::ThreadPool, and on the
/// caller. The pool must outlive all calls.
template <detail::TaskPool Pool>
Executor threads(Pool& pool) {
#ifdef ATTN_NO_THREADS
  static_assert(sizeof(Pool) == 0, "attn: this program has no threads (ATTN_NO_THREADS)");
#endif
  return Executor(std::make_shared<detail::BorrowedPool<Pool>>(pool));
}

/// Returns the pool of the process, started at first use. It has one worker per processor that the process may keep
/// busy, given the affinity mask of its first thread and the quota of its container (cgroup).
inline Executor threads() {
  static const Executor pool = threads(detail::usable_cpus());
  return pool;
}

inline const Executor::Backend& Executor::backend() const { return backend_ ? *backend_ : *threads().backend_; }

namespace detail {

/// The amount of work of a call.
struct Work {
  double flops;
  double bytes = 0;  ///< of data that is read once

  /// Estimated time on one thread. A rough estimate suffices: cores differ by a factor of ten, and the number of
  /// workers grows with the square root of the time. 50 flops per nanosecond are half of what AVX2 reaches and a third
  /// of what AVX-512 reaches; 20 bytes per nanosecond lie between the 10 that a core reads from memory and the 25 to 80
  /// that it reads from a large shared cache.
  double microseconds() const {
    constexpr double kFlops = 50e3, kBytes = 20e3, kNear = 1 << 20;  // kNear bytes fit in a core's own cache
    return std::max(flops / kFlops, bytes > kNear ? bytes / kBytes : 0);
  }
};

/// The cost of loading a value and storing it elsewhere, about a nanosecond, expressed in flops; see Work.
constexpr double kFlopsToMove = 50;

/// The workers that a call uses: those of its executor, or fewer if there is little work. The executor must outlive
/// this object.
class Workers {
 public:
  Workers(const Work& work, const Executor& executor)
      : executor_(&executor), microseconds_(work.microseconds()), count_(count_for(microseconds_, executor)) {}

  int count() const { return count_; }
  /// Estimated time of the work on one thread.
  double microseconds() const { return microseconds_; }

  /// Calls task(i, worker) for every i in [0, tasks), with workers in [0, count()).
  void run(Index tasks, TaskRef task) const { run(tasks, microseconds_, task); }
  /// As above, for a part of the work that takes one thread this many microseconds.
  void run(Index tasks, double microseconds, TaskRef task) const {
    if (count_ > 1 || !executor_->is_default()) return executor_->run_with(count_, microseconds, tasks, task);
    SerialBackend().run(tasks, task);
  }

 private:
  static int count_for(double microseconds, const Executor& executor) {
    // The default executor uses threads only where they pay off even if they have to be woken.
    if (executor.is_default() && microseconds < 2 * kMicrosecondsToWake) return 1;
    const int count = executor.workers_for(microseconds);
    require(count > 0, "the executor has ", count, " workers, but needs at least one, the calling thread");
    return count;
  }

  const Executor* executor_;
  double microseconds_;
  int count_;
};

}  // namespace detail

}  // namespace attn
