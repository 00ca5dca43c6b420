// Layer 1: who runs the tasks of a call. Kernels never start a thread themselves.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include "attn/detail/check.h"
#include "attn/types.h"

namespace attn {

/// A borrowed `void(Index task, int worker)`: no allocation, valid only while the callable lives.
class TaskRef {
 public:
  template <class F>
  requires(!std::is_same_v<F, TaskRef>) TaskRef(const F& f)
      : object_(&f), call_([](const void* o, Index task, int worker) { (*static_cast<const F*>(o))(task, worker); }) {}
  void operator()(Index task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, Index, int);
};

/// Runs independent tasks. To bring your own threads, derive from Executor::Backend and pass a shared pointer to it.
class Executor {
 public:
  class Backend {
   public:
    virtual ~Backend() = default;
    /// How many workers may run at the same time, at least 1.
    virtual int concurrency() const = 0;
    /// Calls task(i, worker) once for every i in [0, tasks) and returns when all are done. Two calls that overlap in
    /// time have different workers; a worker is in [0, concurrency()). An exception of a task reaches the caller after
    /// all others have stopped.
    virtual void run(Index tasks, TaskRef task) const = 0;
  };

  /// All cores, see threads(); the calling thread alone where the work is too little to wake others for.
  Executor() = default;
  explicit Executor(std::shared_ptr<const Backend> backend) : backend_(std::move(backend)) {}

  bool is_default() const { return backend_ == nullptr; }
  int concurrency() const { return backend().concurrency(); }
  void run(Index tasks, TaskRef task) const { backend().run(tasks, task); }

 private:
  const Backend& backend() const;

  std::shared_ptr<const Backend> backend_;
};

namespace detail {

class SerialBackend final : public Executor::Backend {
 public:
  int concurrency() const override { return 1; }
  void run(Index tasks, TaskRef task) const override {
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
};

/// Hands out tasks in ascending order to whichever worker is free; the calling thread is worker 0.
class PoolBackend final : public Executor::Backend {
 public:
  explicit PoolBackend(int workers) : workers_(workers), pool_(workers - 1) {}

  int concurrency() const override { return workers_; }

  void run(Index tasks, TaskRef task) const override {
    // A call from inside a task runs alone: its siblings already use the other threads.
    const int helpers = inside_task_ ? 0 : static_cast<int>(std::min<Index>(workers_, tasks)) - 1;
    if (helpers <= 0) return serial_.run(tasks, task);

    // Shared, because a helper that the pool starts late, when another call kept it busy, finds the call gone and
    // leaves.
    const auto call = std::make_shared<Call>(tasks, task);
    for (int worker = 1; worker <= helpers; ++worker) pool_.Schedule([call, worker] { call->help(worker); });
    call->work(0);
    call->wait_for_helpers();
  }

 private:
  class Call {
   public:
    Call(Index tasks, TaskRef task) : tasks_(tasks), task_(task) {}

    void work(int worker) {
      inside_task_ = true;
      try {
        for (Index i = next_++; i < tasks_; i = next_++) task_(i, worker);
      } catch (...) {
        next_ = tasks_;
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      inside_task_ = false;
    }

    void help(int worker) {
      {
        const std::lock_guard lock(mutex_);
        if (over_) return;
        ++helping_;
      }
      work(worker);
      const std::lock_guard lock(mutex_);
      if (--helping_ == 0) idle_.notify_one();
    }

    /// After work() has returned there are no tasks left to begin. Throws what a task threw first.
    void wait_for_helpers() {
      std::unique_lock lock(mutex_);
      over_ = true;
      idle_.wait(lock, [this] { return helping_ == 0; });
      if (error_) std::rethrow_exception(error_);
    }

   private:
    const Index tasks_;
    const TaskRef task_;
    std::atomic<Index> next_{0};
    std::mutex mutex_;
    std::condition_variable idle_;
    int helping_ = 0;
    bool over_ = false;
    std::exception_ptr error_;
  };

  inline static thread_local bool inside_task_ = false;

  int workers_;
  SerialBackend serial_;
  mutable Eigen::ThreadPool pool_;
};

}  // namespace detail

/// Everything on the calling thread.
inline Executor serial() {
  static const Executor executor(std::make_shared<detail::SerialBackend>());
  return executor;
}

/// A pool of `workers` threads, the caller among them. The pool lives as long as a copy of the executor does: make it
/// once.
/// @throws std::invalid_argument unless workers is positive.
inline Executor threads(int workers) {
  detail::require(workers > 0, "threads(", workers, "): there must be at least one worker, the caller");
  return workers == 1 ? serial() : Executor(std::make_shared<detail::PoolBackend>(workers));
}

/// The pool of the process: as many workers as the machine has hardware threads, started at first use.
inline Executor threads() {
  static const Executor pool = threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return pool;
}

inline const Executor::Backend& Executor::backend() const { return backend_ ? *backend_ : *threads().backend_; }

namespace detail {

/// The executor for work of so many flops: the one asked for, but by default no thread is woken for little. Waking one
/// takes about 10 us, in which a core does a million flops and more.
inline Executor executor_for(double flops, const Executor& asked) {
  constexpr double kFlopsWorthSharing = 2e6;
  return asked.is_default() && flops < kFlopsWorthSharing ? serial() : asked;
}

}  // namespace detail

}  // namespace attn
