// Executor backend on a thread pool that the program already has.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include "attn/core/base/check.h"
#include "attn/core/base/pool.h"
#include "attn/core/base/shared_call.h"

namespace attn::detail {

/// A pool that accepts functions and runs them later, such as Eigen::ThreadPool.
template <class Pool>
concept TaskPool = requires(Pool& pool, std::function<void()> function) {
  { pool.NumThreads() } -> std::convertible_to<int>;
  pool.Schedule(std::move(function));
};

/// Has one mailbox per thread of the pool. The functions that check the mailboxes may run late, after the call has
/// ended or the executor is gone; they then find nothing.
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
    SharedCall call(task, tasks, wanted + 1);
    int asked = 0, last = 0;
    for (; last < helpers_->count && asked < wanted; ++last) asked += ask(helpers_->at(last), call, asked + 1);
    call.work(0);
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
    std::atomic_flag is_scheduled;   // a function that checks the mailbox is queued or running
    std::shared_ptr<Helpers> owner;  // set while such a function is queued or running
  };
  struct Helpers {
    explicit Helpers(int threads) : count(threads), all(new Helper[static_cast<std::size_t>(threads)]) {}
    Helper& at(int i) const { return all.get()[i]; }
    const int count;
    const std::unique_ptr<Helper[]> all;
  };

  bool ask(Helper& helper, SharedCall& call, int worker) const {
    if (!helper.mailbox.ask(call, worker)) return false;
    if (helper.is_scheduled.test_and_set()) return true;
    helper.owner = helpers_;
    run_and_catch(
        [&] {
          // Fits into std::function's inline storage, so nothing is allocated.
          pool_.Schedule([&helper] { look(helper); });
        },
        [&] {  // the pool accepts no more functions: those already queued and this thread suffice
          helper.owner = nullptr;
          helper.is_scheduled.clear();
        });
    return true;
  }

  static void look(Helper& helper) {
    const std::shared_ptr<Helpers> owner = std::move(helper.owner);
    do {
      helper.mailbox.help([](SharedCall&) {});
      helper.is_scheduled.clear();
      // A caller may have posted a request just now and scheduled no function, because this one was still marked as
      // scheduled.
    } while (!helper.mailbox.is_idle() && !helper.is_scheduled.test_and_set());
  }

  Pool& pool_;
  const std::shared_ptr<Helpers> helpers_;
};

}  // namespace attn::detail
