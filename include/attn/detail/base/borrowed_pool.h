// Tasks on the threads of a pool that the program already has.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include "attn/detail/base/pool.h"
#include "attn/detail/base/shared_call.h"

namespace attn::detail {

/// A pool that takes functions and runs them some time later, such as Eigen::ThreadPool.
template <class Pool>
concept TaskPool = requires(Pool& pool, std::function<void()> function) {
  { pool.NumThreads() } -> std::convertible_to<int>;
  pool.Schedule(std::move(function));
};

/// Has a mailbox for each thread of the pool. The functions that look into them may run late, when the call is over or
/// even the executor is gone: then they find nothing.
template <class Pool>
class BorrowedPool final : public Executor::Backend {
 public:
  explicit BorrowedPool(Pool& pool) : pool_(pool), helpers_(std::make_shared<Helpers>(pool.NumThreads())) {}

  int concurrency() const override {
    return SharedCall::is_inside() || inside_openmp_region() ? 1 : helpers_->count + 1;
  }

  void run(Index tasks, TaskRef task) const override { run_with(concurrency(), 0, tasks, task); }

  void run_with(int workers, double, Index tasks, TaskRef task) const override {
    const auto wanted = static_cast<int>(std::min<Index>({workers, concurrency(), tasks})) - 1;
    if (wanted <= 0) return SerialBackend().run(tasks, task);
    SharedCall call(task, tasks);
    int asked = 0, last = 0;
    for (; last < helpers_->count && asked < wanted; ++last) asked += ask(helpers_->at(last), call);
    call.work_as_caller();
    for (int i = 0; i < last; ++i) {
      Mailbox& mailbox = helpers_->at(i).mailbox;
      if (!mailbox.take_back(call)) mailbox.wait(call, [] { return false; });
    }
    call.rethrow();
  }

 private:
  struct Helpers;

  struct Helper {
    Mailbox mailbox;
    std::atomic<bool> is_scheduled{false};  // a function that looks into the mailbox waits in the pool, or runs
    std::shared_ptr<Helpers> owner;         // while one does
  };
  struct Helpers {
    explicit Helpers(int threads) : count(threads), all(new Helper[static_cast<std::size_t>(threads)]) {}
    Helper& at(int i) const { return all.get()[i]; }
    const int count;
    const std::unique_ptr<Helper[]> all;
  };

  bool ask(Helper& helper, SharedCall& call) const {
    if (!helper.mailbox.ask(call)) return false;
    if (helper.is_scheduled.exchange(true)) return true;
    helper.owner = helpers_;
    try {
      // Small enough for std::function to hold without memory of its own.
      pool_.Schedule([&helper] { look(helper); });
    } catch (...) {  // the pool takes no more: those that it took, and this thread, are enough
      helper.owner = nullptr;
      helper.is_scheduled = false;
    }
    return true;
  }

  static void look(Helper& helper) {
    const std::shared_ptr<Helpers> owner = std::move(helper.owner);
    do {
      helper.mailbox.help([](SharedCall&) {});
      helper.is_scheduled = false;
      // A caller that asked just now saw that this function runs, and did not schedule another.
    } while (!helper.mailbox.is_idle() && !helper.is_scheduled.exchange(true));
  }

  Pool& pool_;
  const std::shared_ptr<Helpers> helpers_;
};

}  // namespace attn::detail
