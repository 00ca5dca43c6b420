// The pool of threads that the library brings.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "attn/detail/base/pool.h"
#include "attn/detail/base/shared_call.h"
#include "attn/detail/base/usable_cpus.h"

namespace attn::detail {

/// Tells the processor that this thread waits, so that one that shares its core runs on.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__arm__) && __ARM_ARCH >= 7)
  __asm__ volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

/// Whether threads that spin would keep others from running.
class Crowding {
 public:
  /// Counts the threads of all pools that do not sleep.
  static void add_awake(int threads) { awake_ += threads; }
  static void forget_awake() { awake_ = 0; }

  /// To be called before threads begin: it may run out of memory.
  static const CpuLimits& cpus() {
    static const CpuLimits limits = cpu_limits();
    return limits;
  }

  static bool is_crowded(Clock::time_point now) {
    // The threads, and the caller.
    return cpus().has_quota || awake_.load(std::memory_order_relaxed) >= cpus().count ||
           now.time_since_epoch().count() < crowded_until_.load(std::memory_order_relaxed);
  }

  /// A thread that spins tells when it looked at the clock twice. If it was stopped in between, others want to run.
  static void spun(Clock::time_point before, Clock::time_point now) {
    constexpr std::chrono::microseconds kStopped(30), kFor(3000);
    if (now - before > kStopped) crowded_until_ = (now + kFor).time_since_epoch().count();
  }

 private:
  inline static std::atomic<int> awake_{0};
  inline static std::atomic<Clock::rep> crowded_until_{0};
};

/// How often this process is the child of a fork that came after the first pool. A child has none of its parent's
/// threads, and what these were about to do stays undone.
class Forks {
 public:
  static unsigned count() {
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] {
      ++count_;
      Crowding::forget_awake();
    });
    static_cast<void>(registered);
#endif
    return count_.load(std::memory_order_relaxed);
  }

 private:
  inline static std::atomic<unsigned> count_{0};
};

/// Threads that help whoever asks. The caller posts to the mailboxes of as many as the work pays for; those that spin
/// see it at once, and of those that sleep it wakes a few, which wake others. No lock is taken, and a thread that comes
/// when no task is left delays nobody.
///
/// Eigen's pool does not serve here: when the operating system gives it fewer threads than it wants, it writes to
/// memory that was never allocated and waits for ever.
class ThreadPool final : public Executor::Backend {
 public:
  /// @throws std::bad_alloc, or std::system_error if the operating system has no more threads. None is left then.
  ThreadPool(int workers, double spin_microseconds)
      : count_(workers - 1),
        spin_(
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(spin_microseconds))),
        helpers_(new Helper[static_cast<std::size_t>(count_)]) {
    Crowding::cpus();
    try {
      for (; started_ < count_; ++started_) {
        Helper& helper = this->helper(started_);
        helper.pool = this;
        helper.thread = std::thread(&ThreadPool::serve, static_cast<void*>(&helper));
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~ThreadPool() override { stop(); }

  int concurrency() const override {
    return SharedCall::is_inside() || inside_openmp_region() || is_forked() ? 1 : count_ + 1;
  }

  void run(Index tasks, TaskRef task) const override { ask_and_work(count_, {count_, false}, tasks, task); }

  void run_with(int workers, double microseconds, Index tasks, TaskRef task) const override {
    const auto worth_waking = static_cast<int>(std::clamp<double>(microseconds / kMicrosecondsToWake - 1, 0, count_));
    const bool one_more = workers - 1 > worth_waking && comes_soon_after_another();
    ask_and_work(workers - 1, {worth_waking, one_more}, tasks, task);
  }

 private:
  struct alignas(128) Helper {  // two lines: processors fetch them in pairs
    Mailbox mailbox;
    std::atomic<int> asleep{0};
    ThreadPool* pool = nullptr;
    std::thread thread;

    /// After a request. Whoever goes to sleep sets `asleep` and then looks for requests once more.
    bool wake() {
      if (asleep.load() == 0 || asleep.exchange(0) == 0) return false;
      asleep.notify_one();
      return true;
    }
  };

  /// Whether the last call began so short a time ago that threads which it woke would still spin. Then one that is too
  /// late for this call is awake for the next.
  bool comes_soon_after_another() const {
    const Clock::time_point now = Clock::now();
    const Clock::time_point last(Clock::duration(last_call_.exchange(now.time_since_epoch().count())));
    return now - last < spin_ && !Crowding::is_crowded(now);
  }

  Helper& helper(int i) const { return helpers_.get()[i]; }

  /// A call, and which of the threads that it asked are still to be woken.
  struct Call : SharedCall {
    using SharedCall::SharedCall;
    std::atomic<int> next_to_wake{0}, end_to_wake{0};
  };

  /// Which threads that sleep are asked, too: as many as make up so many helpers, and perhaps one more.
  struct Sleepers {
    int helpers;
    bool one_more;
  };

  /// Asks at most `helpers` threads.
  void ask_and_work(int helpers, Sleepers sleepers, Index tasks, TaskRef task) const {
    const int wanted = static_cast<int>(std::min<Index>({helpers, concurrency() - 1, tasks - 1}));
    if (wanted <= 0) return SerialBackend().run(tasks, task);
    Call call(task, tasks);
    // The first threads worked last, and their caches and their wakefulness are the best.
    int end = 0;
    for (int asked = 0, asleep = 0; end < count_ && asked < wanted; ++end) {
      Helper& helper = this->helper(end);
      if (!helper.mailbox.is_idle()) continue;
      const bool sleeps = helper.asleep.load(std::memory_order_relaxed) != 0;
      if (sleeps && asked >= sleepers.helpers && (asleep > 0 || !sleepers.one_more)) continue;
      if (!helper.mailbox.ask(call)) continue;
      ++asked;
      asleep += sleeps;
    }
    if (end > 0) {
      call.end_to_wake = end;
      wake_some(call);
    }
    call.work_as_caller();
    for (int i = end; i-- > 0;)
      if (!helper(i).mailbox.take_back(call)) await(helper(i).mailbox, call);
    call.rethrow();
  }

  /// Wakes a few of those that a call has asked. Each of them does the same, while tasks are left. A wake takes its
  /// caller a fourth of the time until the thread runs.
  void wake_some(Call& call) const {
    constexpr int kFew = 4;
    for (int woken = 0; woken < kFew && call.has_tasks();) {
      if (call.next_to_wake.load(std::memory_order_relaxed) >= call.end_to_wake.load()) return;
      const int i = call.next_to_wake++;
      if (i >= call.end_to_wake.load()) return;
      woken += helper(i).mailbox.holds(call) && helper(i).wake();
    }
  }

  /// std::thread's symbols are visible even where attn's are hidden. No type of attn is in their names, or a shared
  /// library would export them.
  static void serve(void* of_thread) {
    Helper& helper = *static_cast<Helper*>(of_thread);
    const ThreadPool& pool = *helper.pool;
    Crowding::add_awake(1);
    for (bool had_to_sleep = false; !helper.mailbox.is_stopped();) {
      had_to_sleep = pool.wait_for_request(helper, had_to_sleep);
      helper.mailbox.help([&](SharedCall& call) { pool.wake_some(static_cast<Call&>(call)); });
    }
    Crowding::add_awake(-1);
  }

  /// Spins for a while, since one call often follows another, and then sleeps. A thread that slept for long last time,
  /// because calls come rarely, spins for less. Returns whether it slept for long.
  bool wait_for_request(Helper& helper, bool slept_last_time) const {
    const Clock::time_point begin = Clock::now();
    const Clock::duration spin = Crowding::is_crowded(begin) ? Clock::duration(0)
                                 : slept_last_time           ? spin_ / 16
                                                             : spin_;
    for (Clock::time_point before = begin, now; before - begin < spin; before = now) {
      for (int i = 0; i < 4; ++i) {
        if (!helper.mailbox.is_idle()) return false;
        pause_briefly();
      }
      now = Clock::now();
      Crowding::spun(before, now);
    }
    if (!helper.mailbox.is_idle()) return false;
    // Once: who is woken too late for a call spins until the next.
    Crowding::add_awake(-1);
    helper.asleep = 1;
    if (helper.mailbox.is_idle()) helper.asleep.wait(1);
    helper.asleep = 0;
    Crowding::add_awake(1);
    return Clock::now() - begin > 2 * spin_;
  }

  /// Waits for a thread that has begun its last task.
  void await(Mailbox& mailbox, const SharedCall& call) const {
    constexpr std::chrono::microseconds kAtMost(20);
    const Clock::time_point begin = Clock::now();
    const Clock::duration spin =
        Crowding::is_crowded(begin) ? Clock::duration(0) : std::min<Clock::duration>(spin_, kAtMost);
    mailbox.wait(call, [&] {
      pause_briefly();
      return Clock::now() - begin < spin;
    });
  }

  void stop() {
    // The threads are the parent's, and the child may not even forget them: their memory is gone.
    if (is_forked()) return static_cast<void>(helpers_.release());
    for (int i = 0; i < started_; ++i) {
      // Also where a task ends the program, and its call is never taken back: who is asked is woken and finds no task.
      helper(i).mailbox.stop([&] {
        helper(i).wake();
        pause_briefly();
      });
      helper(i).wake();
      helper(i).thread.join();
    }
  }

  bool is_forked() const { return Forks::count() != forks_; }

  const unsigned forks_ = Forks::count();
  const int count_;
  const Clock::duration spin_;
  mutable std::atomic<Clock::rep> last_call_{0};  // of those that could not wake as many as they wanted
  int started_ = 0;
  std::unique_ptr<Helper[]> helpers_;
};

template <class>
std::shared_ptr<const Executor::Backend> make_pool(int workers, double spin_microseconds) {
  return std::make_shared<ThreadPool>(workers, spin_microseconds);
}
template <class>
int usable_cpus() {
  return cpu_limits().count;
}

}  // namespace attn::detail
