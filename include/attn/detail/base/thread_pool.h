// The pool of threads that the library brings.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include "attn/detail/base/helper_threads.h"
#include "attn/detail/base/pool.h"

namespace attn::detail {

// What OpenMP's runtime answers, where the program has one; the flag for OpenMP need not be set here.
#if defined(__ELF__) && defined(__GNUC__)
extern "C" int attn_omp_in_parallel() __asm__("omp_in_parallel") __attribute__((weak));
inline bool inside_openmp_region() { return attn_omp_in_parallel != nullptr && attn_omp_in_parallel() != 0; }
#else
inline bool inside_openmp_region() { return false; }
#endif

/// Hands out tasks in ascending order to whichever worker is free; the calling thread is worker 0.
class PoolBackend final : public Executor::Backend {
 public:
  /// @throws as Helpers() does.
  explicit PoolBackend(int workers)
      : workers_(workers),
        calls_(std::make_shared<Calls>(workers_)),
        own_(std::make_unique<Helpers>(workers - 1)),
        pool_(nullptr) {}
  explicit PoolBackend(Eigen::ThreadPoolInterface& pool)
      : workers_(pool.NumThreads() + 1), calls_(std::make_shared<Calls>(workers_)), pool_(&pool) {}

  /// A call from inside a task or a parallel region runs alone: its siblings already use the other threads.
  int concurrency() const override { return inside_task_ || inside_openmp_region() ? 1 : workers_; }

  void run(Index tasks, TaskRef task) const override {
    const int helpers = static_cast<int>(std::min<Index>(concurrency(), tasks)) - 1;
    if (helpers <= 0) return serial_.run(tasks, task);

    Call* const call = calls_->take();
    // All call objects are in use, so no helper would come in time. This thread runs all tasks.
    if (call == nullptr) return serial_.run(tasks, task);
    call->begin(tasks, task, helpers);
    if (own_)
      own_->ask(*call, helpers);
    else
      schedule(*call, helpers);
    call->work(0);
    call->end();
  }

 private:
  class Calls;

  /// One call of run(). A helper that the pool starts late, when another call kept it busy, finds the call over and
  /// leaves; only then can the object serve another call.
  class Call final : public Helped {
   public:
    void begin(Index tasks, TaskRef task, int helpers) {
      tasks_ = tasks;
      task_ = task;
      next_ = 0;
      over_ = false;
      expected_ = helpers;
      ended_ = false;
    }

    void expect_fewer(int helpers) {
      const std::lock_guard lock(mutex_);
      expected_ -= helpers;
    }

    void work(int worker) {
      inside_task_ = true;
      try {
        for (Index i = next_++; i < tasks_; i = next_++) (*task_)(i, worker);
      } catch (...) {
        next_ = tasks_;
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      inside_task_ = false;
    }

    void help(int worker) override {
      bool late;
      {
        const std::lock_guard lock(mutex_);
        late = over_;
        if (!late) ++helping_;
      }
      if (!late) work(worker);
      leave(late);
    }

    /// Waits for the helpers that have begun; after work() has returned there are no tasks left for others. Throws what
    /// a task threw first.
    void end() {
      std::exception_ptr error;
      bool unused;
      {
        std::unique_lock lock(mutex_);
        over_ = true;
        idle_.wait(lock, [this] { return helping_ == 0; });
        error = std::exchange(error_, nullptr);
        ended_ = true;
        unused = expected_ == 0;
      }
      if (unused) give_back();
      if (error) std::rethrow_exception(error);
    }

   private:
    friend Calls;

    void leave(bool late) {
      bool unused;
      {
        const std::lock_guard lock(mutex_);
        if (!late && --helping_ == 0) idle_.notify_one();
        unused = --expected_ == 0 && ended_;
      }
      if (unused) give_back();
    }

    void give_back() {
      const std::shared_ptr<Calls> list = std::move(list_);
      list->put(this);
    }

    std::shared_ptr<Calls> list_;  // kept alive, because a late helper may leave when the backend is gone
    Index tasks_ = 0;
    std::optional<TaskRef> task_;
    std::atomic<Index> next_{0};
    std::mutex mutex_;
    std::condition_variable idle_;
    int expected_ = 0;  // helpers that have not left yet, begun or not
    int helping_ = 0;
    bool over_ = false;   // no helper may begin
    bool ended_ = false;  // end() has returned, whoever leaves last gives the object back
    std::exception_ptr error_;
  };

  /// The objects that no call uses. They are made once, so that a call allocates nothing.
  class Calls : public std::enable_shared_from_this<Calls> {
   public:
    explicit Calls(int workers) {
      const std::size_t count = kPerWorker * static_cast<std::size_t>(workers);
      unused_.reserve(count);
      all_.reset(new Call[count]);
      for (std::size_t i = 0; i < count; ++i) unused_.push_back(&all_[i]);
    }

    /// Null if all are in use.
    Call* take() {
      const std::lock_guard lock(mutex_);
      if (unused_.empty()) return nullptr;
      Call* const call = unused_.back();
      unused_.pop_back();
      call->list_ = shared_from_this();
      return call;
    }
    void put(Call* call) {
      const std::lock_guard lock(mutex_);
      unused_.push_back(call);  // within the capacity it had at first
    }

   private:
    static constexpr std::size_t kPerWorker = 8;

    std::unique_ptr<Call[]> all_;
    std::mutex mutex_;
    std::vector<Call*> unused_;
  };

  /// Asks the threads of the program's pool for help.
  void schedule(Call& call, int helpers) const {
    // What is scheduled is small enough for std::function to hold without memory of its own.
    int scheduled = 0;
    try {
      for (; scheduled < helpers; ++scheduled) pool_->Schedule([&call, worker = scheduled + 1] { call.help(worker); });
    } catch (...) {
      call.expect_fewer(helpers -
                        scheduled);  // the pool takes no more: those that it took, and this thread, are enough
    }
  }

  inline static thread_local bool inside_task_ = false;

  SerialBackend serial_;
  int workers_;
  std::shared_ptr<Calls> calls_;
  std::unique_ptr<Helpers> own_;  // waits for its threads before the rest goes
  Eigen::ThreadPoolInterface* pool_;
};

template <class>
std::shared_ptr<const Executor::Backend> make_pool(int workers) {
  return std::make_shared<PoolBackend>(workers);
}
template <class>
std::shared_ptr<const Executor::Backend> make_pool(Eigen::ThreadPoolInterface& pool) {
  return std::make_shared<PoolBackend>(pool);
}
template <class>
int hardware_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace attn::detail
