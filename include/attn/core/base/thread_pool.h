// The library's own thread pool, and the number of processors that it may keep busy.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif

#include "attn/core/base/pool.h"
#include "attn/core/base/shared_call.h"
#include "attn/core/base/sync.h"

namespace attn::detail {

/// Returns the processor time that a cgroup allows per period, in processors; 0 if it has no quota or cannot be read.
/// Version 2 has "max 100000" or "150000 100000" in one file, version 1 one number in each of two files.
inline double cpu_quota(const std::string& folder) {
  const auto numbers = [](const std::string& file, double* first, double* second) {
    std::FILE* const in = std::fopen(file.c_str(), "re");
    if (!in) return 0;
    const int read = second ? std::fscanf(in, "%lf %lf", first, second) : std::fscanf(in, "%lf", first);
    std::fclose(in);
    return read;
  };
  double quota = 0, period = 0;
  if (numbers(folder + "/cpu.max", &quota, &period) != 2 &&
      (numbers(folder + "/cpu.cfs_quota_us", &quota, nullptr) != 1 ||
       numbers(folder + "/cpu.cfs_period_us", &period, nullptr) != 1))
    return 0;
  return quota > 0 && period > 0 ? quota / period : 0;
}

/// Whether a comma-separated list of names contains "cpu".
inline bool lists_cpu(std::string_view names) {
  for (;;) {
    const std::size_t comma = names.find(',');
    if (names.substr(0, comma) == "cpu") return true;
    if (comma == std::string_view::npos) return false;
    names.remove_prefix(comma + 1);
  }
}

/// Returns the smallest quota of the cgroup of a process and its ancestors; 0 if none has one. `membership` is
/// /proc/self/cgroup, with a line "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1), and `mounts` is the root
/// of such paths: /sys/fs/cgroup.
inline double least_cpu_quota(const std::string& membership, const std::string& mounts) {
  double least = 0;
  const auto consider = [&](const std::string& folder) {
    if (const double quota = cpu_quota(folder); quota > 0) least = least > 0 ? std::min(least, quota) : quota;
  };
  // In a container the paths may be those that the host sees; then only the root of the tree can be read.
  consider(mounts);
  consider(mounts + "/cpu");
  std::FILE* const in = std::fopen(membership.c_str(), "re");
  if (!in) return least;
  char line[4096];
  while (std::fgets(line, sizeof line, in)) {
    line[std::strcspn(line, "\n")] = '\0';
    char* const controllers = std::strchr(line, ':');
    char* const path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    const std::string_view names(controllers + 1, static_cast<std::size_t>(path - controllers - 1));
    if (!names.empty() && !lists_cpu(names)) continue;
    const std::string root = names.empty() ? mounts : mounts + "/cpu";
    for (std::string folder = path + 1; folder.size() > 1; folder.erase(folder.rfind('/'))) {
      consider(root + folder);
      if (folder.find('/') == std::string::npos) break;
    }
  }
  std::fclose(in);
  return least;
}

struct CpuLimits {
  int count;       ///< processors that this process may keep busy at the same time
  bool has_quota;  ///< whether its CPU time is limited: a spinning thread then uses up what others need
};

inline CpuLimits cpu_limits() {
  CpuLimits limits{std::max(1, static_cast<int>(std::thread::hardware_concurrency())), false};
#ifdef __linux__
  // The affinity of the main thread: others may be bound to fewer processors. glibc's hardware_concurrency() ignores
  // the affinity. sched_getaffinity() fails above 1024 processors.
  cpu_set_t allowed;
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0)
    limits.count = std::min(limits.count, CPU_COUNT(&allowed));
  if (const double quota = least_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"); quota > 0 && quota < limits.count) {
    limits.count = std::max(1, static_cast<int>(std::lround(quota)));
    limits.has_quota = true;
  }
#endif
  return limits;
}

/// Tells the processor that this thread is spinning, so that another thread on its core can run.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__arm__) && __ARM_ARCH >= 7)
  __asm__ volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

/// Detects whether spinning threads would keep others from running.
class Crowding {
 public:
  /// Adds to the number of awake threads of all pools.
  static void add_awake(int threads) { awake_ += threads; }
  static void forget_awake() { awake_ = 0; }

  /// Call it before threads start, because it may run out of memory.
  static const CpuLimits& cpus() {
    static const CpuLimits limits = cpu_limits();
    return limits;
  }

  static bool is_crowded(Clock::time_point now) {
    // The caller also needs a processor, so the awake threads alone must be fewer than the processors.
    return cpus().has_quota || awake_.load(std::memory_order_relaxed) >= cpus().count ||
           now.time_since_epoch().count() < crowded_until_.load(std::memory_order_relaxed);
  }

  /// Takes two successive clock readings of a spinning thread. If it was preempted in between, other threads want to
  /// run.
  static void spun(Clock::time_point before, Clock::time_point now) {
    constexpr std::chrono::microseconds kStopped(30), kFor(3000);
    if (now - before > kStopped) crowded_until_ = (now + kFor).time_since_epoch().count();
  }

 private:
  inline static std::atomic<int> awake_{0};
  inline static std::atomic<Clock::rep> crowded_until_{0};
};

/// Counts the forks that led to this process after the first pool was created. A child has none of its parent's
/// threads, and their pending work is never done.
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

/// Worker threads shared by concurrent calls. A caller posts to the mailboxes of as many threads as the work justifies;
/// spinning threads see the request at once. The caller wakes a few of the sleeping threads, which wake others. No lock
/// is taken, and a thread that is too late to get a task delays no call.
///
/// Eigen's pool is unsuitable: when the operating system gives it fewer threads than it wants, it writes to memory that
/// was never allocated and waits forever.
class ThreadPool final : public Executor::Backend {
 public:
  /// @throws std::bad_alloc, or std::system_error if the operating system has no more threads. In either case no thread
  /// keeps running.
  ThreadPool(int workers, double spin_microseconds)
      : count_(workers - 1),
        spin_(
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(spin_microseconds))),
        helpers_(new Helper[static_cast<std::size_t>(count_)]) {
    Crowding::cpus();
    struct StopUnlessComplete {
      ~StopUnlessComplete() {
        if (pool.started_ < pool.count_) pool.stop();
      }
      ThreadPool& pool;
    } stop_unless_complete{*this};
    for (; started_ < count_; ++started_) {
      Helper& helper = this->helper(started_);
      helper.pool = this;
      helper.thread = std::thread(&ThreadPool::serve, static_cast<void*>(&helper));
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
  struct alignas(128) Helper {  // two cache lines: processors fetch them in pairs
    Mailbox mailbox;
    Waitable<int> asleep{0};
    ThreadPool* pool = nullptr;
    std::thread thread;

    /// Call it after a request. A thread that goes to sleep sets `asleep` and then checks for requests once more.
    bool wake() {
      if (asleep.load() == 0 || asleep.exchange(0) == 0) return false;
      asleep.notify_one();
      return true;
    }
  };

  /// Whether the last call began so recently that the threads it woke would still be spinning. If calls follow each
  /// other like this, a thread that wakes too late for one call is awake for the next.
  bool comes_soon_after_another() const {
    const Clock::time_point now = Clock::now();
    const Clock::time_point last(Clock::duration(last_call_.exchange(now.time_since_epoch().count())));
    return now - last < spin_ && !Crowding::is_crowded(now);
  }

  Helper& helper(int i) const { return helpers_.get()[i]; }

  /// A call, and the range of threads that were asked to help with it and are still to be woken.
  struct Call : SharedCall {
    using SharedCall::SharedCall;
    std::atomic<int> next_to_wake{0}, end_to_wake{0};
  };

  /// How many sleeping threads a call may ask: enough to reach `helpers` threads, or one if `helpers` threads are
  /// already awake and `one_more` is set.
  struct Sleepers {
    int helpers;
    bool one_more;
  };

  /// Runs the tasks on this thread and at most `helpers` others.
  void ask_and_work(int helpers, Sleepers sleepers, Index tasks, TaskRef task) const {
    const int wanted = static_cast<int>(std::min<Index>({helpers, concurrency() - 1, tasks - 1}));
    if (wanted <= 0) return SerialBackend().run(tasks, task);
    Call call(task, tasks, wanted + 1);
    // The threads at the front worked most recently, so their caches are warmest and they are most likely awake.
    int end = 0;  // of those asked
    for (int i = 0, asked = 0, asleep = 0; i < count_ && asked < wanted; ++i) {
      Helper& helper = this->helper(i);
      if (!helper.mailbox.is_idle()) continue;
      const bool sleeps = helper.asleep.load(std::memory_order_relaxed) != 0;
      if (sleeps && asked >= sleepers.helpers && (asleep > 0 || !sleepers.one_more)) continue;
      if (!helper.mailbox.ask(call, asked + 1)) continue;
      ++asked;
      asleep += sleeps;
      end = i + 1;
    }
    if (end > 0) {
      call.end_to_wake = end;
      wake_some(call);
    }
    call.work(0);
    for (int i = end; i-- > 0;)
      if (!helper(i).mailbox.take_back(call)) await(helper(i).mailbox, call);
    call.rethrow();
  }

  /// Wakes a few of the threads that a call has asked. Each woken thread wakes a few more while tasks are left. A
  /// wake-up costs its caller a quarter of the time that passes until the thread runs.
  void wake_some(Call& call) const {
    constexpr int kFew = 4;
    for (int woken = 0; woken < kFew && call.has_tasks();) {
      if (call.next_to_wake.load(std::memory_order_relaxed) >= call.end_to_wake.load()) return;
      const int i = call.next_to_wake++;
      if (i >= call.end_to_wake.load()) return;
      woken += helper(i).mailbox.holds(call) && helper(i).wake();
    }
  }

  /// std::thread's symbols are visible even where attn's are hidden. A shared library would export them if their names
  /// contained a type of attn; hence the void*.
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

  /// Spins for a while, since one call often follows another, and then sleeps. A thread whose previous sleep was long,
  /// because calls are rare, spins for a shorter time. Returns whether it slept for a long time.
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
    // Waits only once: a thread that is woken too late for a call spins until the next.
    Crowding::add_awake(-1);
    helper.asleep = 1;
    if (helper.mailbox.is_idle()) helper.asleep.wait(1);
    helper.asleep = 0;
    Crowding::add_awake(1);
    return Clock::now() - begin > 2 * spin_;
  }

  /// Waits for a thread that is still running its last task of a call.
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
    // The threads are the parent's, and the child cannot even detach them, because their memory is gone.
    if (is_forked()) return static_cast<void>(helpers_.release());
    for (int i = 0; i < started_; ++i) {
      // If a task ends the program, the requests of its call are never withdrawn: a thread that was asked is woken and
      // finds no task.
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
  mutable std::atomic<Clock::rep> last_call_{
      0};  // start of the last call that wanted more threads than were worth waking
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
