// Executor: the interface to the threads that run the tasks of a call. Kernels never start threads themselves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/types.h"

namespace attn {

/// A non-owning reference to a callable `void(Index task, int worker)`. It allocates nothing and is valid only while
/// the callable lives.
class TaskRef {
 public:
  /// Refers to `f`, which is called as f(task, worker).
  template <class F>
  requires(!std::is_same_v<F, TaskRef>) TaskRef(const F& f)
      : object_(&f), call_([](const void* o, Index task, int worker) { (*static_cast<const F*>(o))(task, worker); }) {}
  /// Calls the callable.
  void operator()(Index task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, Index, int);
};

/// Runs independent tasks. To use your own threads, derive from Executor::Backend and pass a shared pointer to it.
///
/// Create an executor once and reuse it. Copies share its threads, which live as long as the last copy. Any number of
/// threads may use it at the same time. They may also share mods, const caches and layers: see "Thread safety" in
/// examples/README.md. If a task throws, so does the call, and the executor remains usable.
class Executor {
 public:
  /// Interface that runs tasks. Derive from it to use your own threads; two functions are enough.
  class Backend {
   public:
    virtual ~Backend() = default;
    /// Returns how many workers may run at the same time, at least 1.
    virtual int concurrency() const = 0;
    /// Calls task(i, worker) once for every i in [0, tasks) and returns when all are done. `worker` is in [0,
    /// concurrency()), and two tasks of a call that run at the same time have different workers. If a task throws,
    /// run() rethrows the exception after all other tasks have stopped; tasks that have not begun need not run.
    ///
    /// Several threads may call run() at the same time, each for a different call. A task may also call run().
    virtual void run(Index tasks, TaskRef task) const = 0;

    /// Returns the number of workers, in [1, concurrency()], for a call that would take `microseconds` on one thread.
    /// Work is split and memory is laid out for this number, so it must not depend on which threads are idle.
    ///
    /// The default is √(2 t) for t microseconds, clamped to [1, concurrency()]. Calls are handed to workers one after
    /// another, at about half a microsecond each: one cache-line transfer hands over the call, one is needed per task,
    /// and one reports that the worker has finished. So k workers take t / k + k / 2, which is smallest for k = √(2 t).
    /// Override this function if a worker costs more.
    virtual int workers_for(double microseconds) const;

    /// Runs tasks like run(), but on at most `workers` workers, numbered in [0, workers). `microseconds` is the time
    /// that the work would take on one thread. The default calls run(tasks, task) if all workers may be used; otherwise
    /// it calls run() with one task per worker, a loop that takes tasks until none is left. A backend that does
    /// something between tasks must override this function too.
    virtual void run_with(int workers, double microseconds, Index tasks, TaskRef task) const;
  };

  /// The default: threads(), or the calling thread alone if there is too little work to justify waking another thread.
  Executor() = default;
  /// Uses your own backend, shared with the executor. Null selects the default.
  explicit Executor(std::shared_ptr<const Backend> backend) : backend_(std::move(backend)) {}

  /// Not to be called: fails to compile, with a message that says to create an executor of n threads with threads(n).
  template <std::integral N>
  Executor(N) {
    static_assert(sizeof(N) == 0,
                  "attn: an executor is not a number of threads; create one with attn::threads(n) and reuse it");
  }

  /// Whether no backend was given; a call then chooses between all cores and the calling thread.
  bool is_default() const { return backend_ == nullptr; }
  /// The number of workers of the backend.
  int concurrency() const { return backend().concurrency(); }
  /// Runs tasks on the backend.
  void run(Index tasks, TaskRef task) const { backend().run(tasks, task); }
  /// Returns the number of workers for work of this duration; see Backend.
  int workers_for(double microseconds) const { return backend().workers_for(microseconds); }
  /// Runs tasks on at most `workers` workers; see Backend.
  void run_with(int workers, double microseconds, Index tasks, TaskRef task) const {
    backend().run_with(workers, microseconds, tasks, task);
  }

 private:
  const Backend& backend() const;

  std::shared_ptr<const Backend> backend_;
};

inline int Executor::Backend::workers_for(double microseconds) const {
  const int most = concurrency();
  const double wanted = std::sqrt(2 * std::max(microseconds, 0.5));
  return wanted < most ? static_cast<int>(wanted) : most;
}

inline void Executor::Backend::run_with(int workers, double, Index tasks, TaskRef task) const {
  if (workers >= concurrency()) return run(tasks, task);
  std::atomic<Index> next{0};
  run(std::min<Index>(workers, tasks), [&](Index worker, int) {
    // If a task throws, the other workers take no more tasks.
    struct LeaveNone {
      ~LeaveNone() { next = tasks; }
      std::atomic<Index>& next;
      Index tasks;
    } leave_none{next, tasks};
    for (Index i = next++; i < tasks; i = next++) task(i, static_cast<int>(worker));
  });
}

}  // namespace attn
