// The interface to whatever runs the tasks of a call. Kernels never start a thread themselves.
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

/// A borrowed `void(Index task, int worker)`. It allocates nothing and is valid only while the callable lives.
class TaskRef {
 public:
  /// Borrows `f`, which is called as f(task, worker).
  template <class F>
  requires(!std::is_same_v<F, TaskRef>) TaskRef(const F& f)
      : object_(&f), call_([](const void* o, Index task, int worker) { (*static_cast<const F*>(o))(task, worker); }) {}
  /// Calls it.
  void operator()(Index task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, Index, int);
};

/// Runs independent tasks. To bring your own threads, derive from Executor::Backend and pass a shared pointer to it.
class Executor {
 public:
  /// What runs tasks. Derive from it to bring your own threads; two functions are enough.
  class Backend {
   public:
    virtual ~Backend() = default;
    /// How many workers may run at the same time, at least 1.
    virtual int concurrency() const = 0;
    /// Calls task(i, worker) once for every i in [0, tasks) and returns when all are done. `worker` is in
    /// [0, concurrency()), and two tasks that run at the same time have different workers. If a task throws, run()
    /// throws the exception after all other tasks have stopped.
    virtual void run(Index tasks, TaskRef task) const = 0;

    /// How many workers a call should have whose work takes one thread so many microseconds: in [1, concurrency()].
    /// Work is cut and memory is laid out for so many, so the answer may not depend on which threads are idle.
    ///
    /// By default √(2 t), at least 1 and at most concurrency(). Each worker costs about half a microsecond, one after
    /// the other: a line of memory goes to it with the call, one comes for each task, one comes back when it is done.
    /// So k workers take t / k + k / 2, which is least at √(2 t). Override it where a worker costs more.
    virtual int workers_for(double microseconds) const;

    /// run() on at most so many workers, whose numbers are in [0, workers). The work takes one thread so many
    /// microseconds. By default it calls run() with a task for each worker, which takes tasks until none is left: a
    /// backend that does something between tasks replaces this function, too.
    virtual void run_with(int workers, double microseconds, Index tasks, TaskRef task) const;
  };

  /// The default: threads(), or the calling thread alone if the work is too little to wake another thread for.
  Executor() = default;
  /// A backend of your own, shared with the executor. Null is the default.
  explicit Executor(std::shared_ptr<const Backend> backend) : backend_(std::move(backend)) {}

  /// Not to be called: does not compile, and says that an executor of so many threads is threads(n).
  template <std::integral N>
  Executor(N) {
    static_assert(sizeof(N) == 0, "attn: an executor of so many threads is attn::threads(n), made once");
  }

  /// Whether no backend was named; the call then chooses between all cores and the calling thread.
  bool is_default() const { return backend_ == nullptr; }
  /// The workers of the backend.
  int concurrency() const { return backend().concurrency(); }
  /// Runs tasks on the backend.
  void run(Index tasks, TaskRef task) const { backend().run(tasks, task); }
  /// The workers that such work should have; see Backend.
  int workers_for(double microseconds) const { return backend().workers_for(microseconds); }
  /// Runs tasks on at most so many workers; see Backend.
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
    try {
      for (Index i = next++; i < tasks; i = next++) task(i, static_cast<int>(worker));
    } catch (...) {
      next = tasks;
      throw;
    }
  });
}

}  // namespace attn
