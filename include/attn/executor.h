// The interface to whatever runs the tasks of a call. Kernels never start a thread themselves.
#pragma once

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
  /// What runs tasks. Derive from it to bring your own threads.
  class Backend {
   public:
    virtual ~Backend() = default;
    /// How many workers may run at the same time, at least 1.
    virtual int concurrency() const = 0;
    /// Calls task(i, worker) once for every i in [0, tasks) and returns when all are done. `worker` is in
    /// [0, concurrency()), and two tasks that run at the same time have different workers. If a task throws, run()
    /// throws the exception after all other tasks have stopped.
    virtual void run(Index tasks, TaskRef task) const = 0;
  };

  /// The default: all cores (see threads()), or the calling thread alone if the work is too little to wake other
  /// threads for.
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

 private:
  const Backend& backend() const;

  std::shared_ptr<const Backend> backend_;
};

}  // namespace attn
