// The executor affects neither the bits of results nor exceptions, even if calls are nested or concurrent.
#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include "attn/core/base/thread_pool.h"
#include "support/executor_rules.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/sample.h"

namespace attn::test {
namespace {

/// Runs tasks from the last to the first, alternating worker numbers.
class ReverseOrder final : public Executor::Backend {
 public:
  int concurrency() const override { return 3; }
  int workers_for(double) const override { return 3; }
  void run(Index tasks, TaskRef task) const override {
    for (Index i = tasks; i-- > 0;) task(i, static_cast<int>(i % 3));
  }
};

/// Starts a new thread for each task, all at once.
class ThreadPerTask final : public Executor::Backend {
 public:
  int concurrency() const override { return kMost; }
  int workers_for(double) const override { return kMost; }
  void run(Index tasks, TaskRef task) const override {
    for (Index first = 0; first < tasks; first += kMost) {
      std::vector<std::thread> running;
      for (int worker = 0; worker < kMost && first + worker < tasks; ++worker)
        running.emplace_back([=] { task(first + worker, worker); });
      for (std::thread& t : running) t.join();
    }
  }

 private:
  static constexpr int kMost = 8;
};

/// The backend of the examples' page.
class ThreadsOfACall final : public Executor::Backend {
 public:
  int concurrency() const override { return 4; }
  void run(Index tasks, TaskRef task) const override {
    std::atomic<Index> next{0};
    const auto work = [&](int worker) {
      for (Index i = next++; i < tasks; i = next++) task(i, worker);
    };
    std::vector<std::future<void>> others;
    for (int worker = 1; worker < concurrency() && worker < tasks; ++worker)
      others.push_back(std::async(std::launch::async, work, worker));
    work(0);
    for (auto& other : others) other.get();
  }
  int workers_for(double microseconds) const override {
    return static_cast<int>(std::clamp<double>(std::sqrt(microseconds / 25), 1, concurrency()));
  }
};

Eigen::ThreadPoolInterface& pool_of_the_program() {
  static Eigen::ThreadPool pool(3);
  return pool;
}

std::vector<Executor> executors() {
  return {serial(),
          threads(),
          threads(1),
          threads(2),
          threads(3),
          threads(7),
          eager_threads(2),
          eager_threads(3),
          eager_threads(7),
          threads(pool_of_the_program()),
          Executor(std::make_shared<ReverseOrder>()),
          Executor(std::make_shared<ThreadPerTask>()),
          Executor(std::make_shared<ThreadsOfACall>())};
}

template <class T>
void expect_same_from_all_executors(Compute compute = Compute::native) {
  Random random(1);
  Sample sample;
  for (const Sizes& s :
       {Sizes{2, 4, 2, 100, 120, 16, 16}, Sizes{1, 1, 1, 300, 333, 9, 5}, Sizes{3, 5, 5, 1, 65, 8, 8},
        Sizes{1, 8, 1, 1, 1000, 64, 64}, Sizes{1, 1, 1, 2, 3, 1, 1}, Sizes{0, 1, 1, 2, 3, 1, 1},
        Sizes{1, 2, 1, 700, 700, 8, 8}, Sizes{1, 2, 2, 97, 177, 32, 3}, Sizes{1, 6, 2, 1, 9000, 32, 32}}) {
    const Inputs in(s, random);
    // Strided rows of keys are packed, and then the tiles per block depend on the number of workers.
    for (const Layout layout : {Layout::bhsd, Layout::gaps}) {
      Arguments<T> a(in, Layout::bhsd, layout, layout);
      const auto expect_same = [&](const auto& mods) {
        if (!sample.takes_next()) return;
        const auto flash_serial = flash(a, mods, {.executor = serial(), .compute = compute});
        const auto naive_serial = naive(a, mods, {.executor = serial()});
        int index = 0;
        for (const Executor& executor : executors()) {
          SCOPED_TRACE(::testing::Message() << "executor " << index++ << ", " << s << sample.text());
          EXPECT_TRUE(same_bits(flash_serial, flash(a, mods, {.executor = executor, .compute = compute})));
          EXPECT_TRUE(same_bits(naive_serial, naive(a, mods, {.executor = executor})));
        }
      };
      expect_same(causal() | softcap(20));
      expect_same(sliding_window(37, 11));  // with bounds that are not multiples of tile sizes
      expect_same(prefix_lm(std::vector<Index>(static_cast<std::size_t>(s.batch), std::min<Index>(33, s.kv_len))));
      expect_same(strided_sparse(3));
      Tensor<Index, 2> lists({s.q_len, s.kv_len / 5});
      for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i * 37 % s.kv_len;
      expect_same(select(lists));
    }
  }
}

TEST(Parallel, ResultsDoNotDependOnTheExecutorFloat) { expect_same_from_all_executors<float>(); }
// Without rounding to 16 bits the last bits of the matrix unit's results are visible.
TEST(Parallel, ResultsDoNotDependOnTheExecutorRounded) { expect_same_from_all_executors<float>(Compute::bf16); }
TEST(Parallel, ResultsDoNotDependOnTheExecutorBfloat16) { expect_same_from_all_executors<Eigen::bfloat16>(); }

TEST(Parallel, EveryTaskRunsOnceAndWorkersDoNotOverlap) {
  for (const Executor& executor : executors()) expect_every_task_once(executor);
}

/// Runs all tasks in order as worker 0, but reports the given number of workers.
class Counts final : public Executor::Backend {
 public:
  explicit Counts(int workers) : workers_(workers) {}
  int concurrency() const override { return workers_; }
  void run(Index tasks, TaskRef task) const override {
    most_asked = std::max(most_asked, tasks);
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
  mutable Index most_asked = 0;

 private:
  int workers_;
};

TEST(Parallel, WorkersGrowWithTheSquareRootOfTheWork) {
  const Counts one(1), eight(8), many(128);
  struct Row {
    double microseconds;
    int of_1, of_8, of_128;
  };
  for (const Row& row :
       {Row{0, 1, 1, 1}, Row{0.1, 1, 1, 1}, Row{1.9, 1, 1, 1}, Row{2, 1, 2, 2}, Row{7, 1, 3, 3}, Row{20, 1, 6, 6},
        Row{100, 1, 8, 14}, Row{500, 1, 8, 31}, Row{1e4, 1, 8, 128}, Row{1e12, 1, 8, 128}, Row{-1, 1, 1, 1}}) {
    EXPECT_EQ(one.workers_for(row.microseconds), row.of_1) << row.microseconds;
    EXPECT_EQ(eight.workers_for(row.microseconds), row.of_8) << row.microseconds;
    EXPECT_EQ(many.workers_for(row.microseconds), row.of_128) << row.microseconds;
  }
  // Executors use this rule unless they override it.
  EXPECT_EQ(threads(16).workers_for(7), 3);
  EXPECT_EQ(threads(pool_of_the_program()).workers_for(2), 2);
  EXPECT_EQ(serial().workers_for(1e6), 1);
  EXPECT_EQ(eager_threads(5).workers_for(0), 5);
}

TEST(Parallel, ACallRequestsOnlyWorkersThatPayOff) {
  struct Row {
    Sizes sizes;
    int workers;
  };
  for (const Row& row :
       {Row{{1, 1, 1, 1, 1, 8, 8}, 1}, Row{{1, 8, 8, 1, 16, 8, 8}, 1}, Row{{1, 8, 8, 1, 128, 64, 64}, 3},
        Row{{1, 8, 8, 128, 128, 64, 64}, 36}, Row{{32, 8, 8, 64, 64, 64, 64}, 103},
        Row{{1, 8, 8, 2048, 2048, 64, 64}, 128}, Row{{1, 4, 4, 1, 16000, 64, 64}, 57}}) {
    Random random(1);
    const Inputs in(row.sizes, random);
    Arguments<float> a(in);
    const auto counts = std::make_shared<Counts>(128);
    const Options options{.executor = Executor(counts)};
    const Explanation e = explain(a.q.cview(), a.k.cview(), a.v.cview(), full(), options);
    EXPECT_EQ(e.threads, std::min<Index>(row.workers, e.tasks)) << row.sizes << ", " << e.microseconds;
    if (row.sizes.q_len * row.sizes.kv_len > 1 << 20) continue;  // takes a long time on one thread
    flash(a, full(), options);
    EXPECT_LE(counts->most_asked, row.workers) << row.sizes;
    EXPECT_EQ(counts->most_asked > 1, row.workers > 1) << row.sizes;
  }
  // Ten microseconds justify four threads that exist already, but not waking any.
  Random random(1);
  const Inputs in({1, 8, 8, 16, 16, 64, 64}, random);
  Arguments<float> a(in);
  EXPECT_EQ(explain(a.q.cview(), a.k.cview(), a.v.cview(), full()).threads, 1);
  EXPECT_EQ(explain(a.q.cview(), a.k.cview(), a.v.cview(), full(), {.executor = threads(8)}).threads, 4);
}

TEST(Parallel, RunWithUsesOnlyItsWorkers) {
  for (const Executor& executor : executors())
    for (const int limit : {1, 2, 3}) {
      const int workers = std::min(limit, executor.concurrency());
      for (const double microseconds : {0.0, 10.0, 1e5}) {
        std::vector<std::atomic<int>> runs(100), inside(static_cast<std::size_t>(workers));
        std::atomic<bool> wrong{false};
        executor.run_with(workers, microseconds, 100, [&](Index task, int worker) {
          if (worker < 0 || worker >= workers) {
            wrong = true;
            return;
          }
          if (++inside[static_cast<std::size_t>(worker)] != 1) wrong = true;
          ++runs[static_cast<std::size_t>(task)];
          --inside[static_cast<std::size_t>(worker)];
        });
        EXPECT_FALSE(wrong);
        for (const auto& n : runs) EXPECT_EQ(n, 1);
      }
    }
}

TEST(Parallel, RunWithStopsAtAnException) {
  for (const Executor& executor :
       {serial(), threads(3), threads(pool_of_the_program()), eager_threads(3),
        Executor(std::make_shared<ReverseOrder>()), Executor(std::make_shared<ThreadsOfACall>())})
    for (const int workers : {1, 2, 3}) {
      std::atomic<int> ran{0};
      EXPECT_THROW(executor.run_with(std::min(workers, executor.concurrency()), 1e5, 1000,
                                     [&](Index task, int) {
                                       if (task == 7) throw std::runtime_error("7");
                                       std::this_thread::sleep_for(std::chrono::microseconds(100));
                                       ++ran;
                                     }),
                   std::runtime_error);
      EXPECT_LT(ran, 999);
    }
}

/// Waits for `condition` with a timeout, so that a failure does not hang. The timeout is read from a clock: in Wine, a
/// short sleep takes no time.
template <class Condition>
bool comes_true(const Condition& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Runs one task per worker, each of which waits for all others. Returns the thread of each task, or nothing if the
/// tasks did not meet.
std::vector<std::thread::id> threads_of_tasks(const Executor& executor, int workers) {
  std::vector<std::thread::id> ids(static_cast<std::size_t>(workers));
  std::atomic<int> arrived{0}, missed{0};
  executor.run(workers, [&](Index task, int) {
    ids[static_cast<std::size_t>(task)] = std::this_thread::get_id();
    ++arrived;
    missed += !comes_true([&] { return arrived == workers; });
  });
  return missed > 0 ? std::vector<std::thread::id>() : ids;
}

TEST(Parallel, AThreadRepeatsItsTasksInTheNextCall) {
  const Executor executor = threads(4);
  const auto first = threads_of_tasks(executor, 4);
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first[0], std::this_thread::get_id());
  for (int call = 0; call < 20; ++call) EXPECT_EQ(threads_of_tasks(executor, 4), first);
}

TEST(Parallel, TasksOfAWorkerThatIsMissingAreDone) {
  // Two workers wait in their first tasks, so the third runs all other tasks, including those in their shares.
  const Executor executor = threads(3);
  constexpr Index kTasks = 300;
  std::vector<std::atomic<int>> runs(kTasks);
  std::atomic<int> done{0}, waiting{0};
  executor.run(kTasks, [&](Index task, int) {
    if (++waiting <= 2) {
      EXPECT_TRUE(comes_true([&] { return done >= kTasks - 2; }));
    }
    ++runs[static_cast<std::size_t>(task)];
    ++done;
  });
  for (const auto& n : runs) EXPECT_EQ(n, 1);
}

TEST(Parallel, ConcurrentCallsGiveCorrectResults) {
  Random random(2);
  const Inputs in({2, 2, 1, 60, 70, 16, 16}, random);
  Arguments<float> a(in);
  const auto expected = flash(a, causal(), {.executor = serial()});
  const auto expected_naive = naive(a, causal(), {.executor = serial()});
  const Executor shared = threads(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&, c] {
      Arguments<float> own(in);
      for (int i = 0; i < 25; ++i) {
        const Options options{.executor = c % 2 == 0 ? shared : threads()};
        wrong += !same_bits(expected, flash(own, causal(), options));
        wrong += !same_bits(expected_naive, naive(own, causal(), options));
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Parallel, ANonFiniteValueDoesNotAffectOtherTiles) {
  // One tile of queries in a block sees a NaN. Results of the block's other tiles are the same as without the NaN.
  Random random(3);
  Inputs in({1, 2, 1, 700, 700, 32, 8}, random);
  in.v[300 * 8 + 3] = std::numeric_limits<double>::quiet_NaN();
  for (const Compute compute : {Compute::native, Compute::bf16})
    for (const Layout layout : {Layout::bhsd, Layout::gaps}) {
      Arguments<float> a(in, Layout::bhsd, layout, layout);
      const auto expected = flash(a, sliding_window(70), {.executor = serial(), .compute = compute});
      for (const Executor& executor : executors())
        EXPECT_TRUE(same_bits(expected, flash(a, sliding_window(70), {.executor = executor, .compute = compute})));
    }
}

TEST(Parallel, AShortCallDoesNotWaitForALongOne) {
  // The long call's tasks keep both of its workers until the short call has returned.
  const Executor shared = threads(2);
  std::atomic<bool> short_is_over{false}, gave_up{false};
  std::atomic<int> begun{0}, ran{0};
  std::thread other([&] {
    shared.run(40, [&](Index, int) {
      ++begun;
      if (!gave_up && !comes_true([&] { return short_is_over.load(); })) gave_up = true;
    });
  });
  EXPECT_TRUE(comes_true([&] { return begun == 2; }));
  shared.run(2, [&](Index, int) { ++ran; });
  EXPECT_EQ(begun, 2) << "the long call continued before the short one returned";
  short_is_over = true;
  other.join();
  EXPECT_FALSE(gave_up);
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(begun, 40);
}

TEST(Parallel, ACallInsideATaskUsesNoOtherThread) {
  const Executor outer = threads(3), inner = threads(2);
  std::atomic<int> elsewhere{0}, tasks{0};
  outer.run(12, [&](Index, int) {
    for (const Executor& executor : {outer, inner, threads()})
      executor.run(5, [&, caller = std::this_thread::get_id()](Index, int worker) {
        elsewhere += std::this_thread::get_id() != caller || worker != 0;
        ++tasks;
      });
  });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(tasks, 12 * 3 * 5);

  // Afterwards, calls use several threads again: two tasks that wait for each other finish only on two threads.
  for (const Executor& executor : {outer, inner}) {
    std::atomic<int> arrived{0}, met{0};
    executor.run(2, [&](Index, int) {
      ++arrived;
      met += comes_true([&] { return arrived == 2; });
    });
    EXPECT_EQ(met, 2);
  }
}

TEST(Parallel, ACallInsideATaskGivesCorrectResults) {
  Random random(3);
  const Inputs in({2, 2, 2, 40, 50, 8, 8}, random);
  Arguments<float> a(in);
  const auto expected = flash(a, causal(), {.executor = serial()});
  for (const Executor& executor : executors()) {
    std::atomic<int> wrong{0};
    executor.run(6, [&](Index, int) {
      Arguments<float> own(in);
      wrong += !same_bits(expected, flash(own, causal(), {.executor = executor}));
      wrong += !same_bits(expected, flash(own, causal()));
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Parallel, AnExceptionFromAModReachesTheCaller) {
  Random random(4);
  const Inputs in({2, 3, 3, 50, 60, 8, 8}, random);
  Arguments<float> a(in);
  const auto bad_mask = mask_mod([](const Position& p) {
    if (p.batch == 1 && p.head == 1 && p.q == 30 && p.kv == 17) throw std::runtime_error("pair (30, 17)");
    return true;
  });
  const auto bad_score = score_mod([](auto x, const Position& p) {
    if (p.q == 30 && p.kv == 17) throw std::runtime_error("pair (30, 17)");
    return x;
  });
  const auto good = flash(a, causal(), {.executor = serial()});
  const auto expect_throw = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "pair (30, 17)");
    }
  };
  for (const Executor& executor :
       {serial(), threads(), threads(2), threads(3), Executor(std::make_shared<ThreadsOfACall>())})
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Options options{.executor = executor};
      expect_throw([&] { flash(a, bad_mask, options); });
      expect_throw([&] { flash(a, bad_score | causal(), options); });
      expect_throw([&] { naive(a, bad_mask, options); });
      expect_throw([&] { naive(a, bad_score | causal(), options); });
      ASSERT_TRUE(same_bits(good, flash(a, causal(), options)));  // the library still works
    }
}

TEST(Parallel, ACallOnABorrowedPoolFromItsOwnThreadsReturns) {
  // The callers occupy all threads of the pool; none may wait for help that cannot come.
  Random random(6);
  const Inputs in({1, 4, 4, 70, 70, 8, 8}, random);
  Arguments<float> a(in);
  const auto expected = flash(a, causal(), {.executor = serial()});
  Eigen::ThreadPool pool(2);
  const Executor borrowed = threads(pool);
  EXPECT_EQ(borrowed.concurrency(), 3);
  std::atomic<int> right{0}, over{0};
  for (int caller = 0; caller < 6; ++caller)
    pool.Schedule([&] {
      Arguments<float> own(in);
      right += same_bits(expected, flash(own, causal(), {.executor = borrowed}));
      ++over;
    });
  EXPECT_TRUE(comes_true([&] { return over == 6; }));
  EXPECT_EQ(right, 6);
}

TEST(Parallel, ALateHelperFindsTheCallFinished) {
  // The pool's only thread is occupied during the calls; their helpers start long after they have returned.
  Eigen::ThreadPool pool(1);
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  pool.Schedule([&] { comes_true([&] { return go.load(); }); });
  {
    const Executor borrowed = threads(pool);
    for (int call = 0; call < 50; ++call) borrowed.run(3, [&](Index, int) { ++ran; });
    EXPECT_EQ(ran, 150);
  }
  go = true;  // the executor is destroyed as well
  std::atomic<bool> idle{false};
  pool.Schedule([&] { idle = true; });
  EXPECT_TRUE(comes_true([&] { return idle.load(); }));
  EXPECT_EQ(ran, 150);
}

TEST(Parallel, HelpersAreAvailableAfterManyCalls) {
  const Executor executor = threads(2);
  for (int call = 0; call < 1000; ++call) executor.run(2, [](Index, int) {});
  // Helpers of short calls may still be pending; once they have left, two tasks can wait for each other again.
  EXPECT_TRUE(comes_true([&] {
    std::atomic<int> arrived{0}, met{0};
    executor.run(2, [&](Index, int) {
      ++arrived;
      for (int wait = 0; wait < 1000 && arrived < 2; ++wait)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      met += arrived == 2;
    });
    return met == 2;
  }));
}

TEST(Parallel, SleepingThreadsAreNotWokenForLittleWork) {
  const Executor executor = threads(4, {.spin_microseconds = 0});
  const auto caller = std::this_thread::get_id();
  const auto elsewhere = [&](double microseconds) {
    std::atomic<int> count{0};
    executor.run_with(4, microseconds, 4, [&](Index, int) {
      count += std::this_thread::get_id() != caller;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    return count.load();
  };
  // A thread that has just started or finished a task is awake.
  EXPECT_TRUE(comes_true([&] { return elsewhere(20) == 0; }));
  EXPECT_TRUE(comes_true([&] { return elsewhere(1000) > 0; }));
}

#if defined(__unix__) || defined(__APPLE__)
TEST(Parallel, IdleThreadsSleep) {
  const Executor executor = threads(4);
  for (int call = 0; call < 100; ++call) executor.run(4, [](Index, int) {});
  const std::clock_t before = std::clock();  // processor time of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST(Parallel, AfterForkTheChildUsesOneThread) {
  Random random(7);
  const Inputs in({2, 4, 4, 70, 80, 16, 16}, random);
  Arguments<float> a(in);
  auto executor = std::make_optional(eager_threads(3));
  threads().run(2, [](Index, int) {});  // the sanitizer does not let a child start threads
  const auto expected = flash(a, causal(), {.executor = *executor});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = executor->concurrency() == 1 && threads().concurrency() == 1;
    for (int i = 0; i < 20; ++i)
      for (const Executor& e : {*executor, threads()})
        right &= same_bits(expected, flash(a, causal(), {.executor = e}));
    executor.reset();      // its destructor must return, too
    _exit(right ? 0 : 1);  // skips the destructor of Eigen's pool, which would wait for its threads
  }
  int status = -1;
  EXPECT_TRUE(comes_true([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  if (status == -1) kill(child, SIGKILL);
  EXPECT_TRUE(same_bits(expected, flash(a, causal(), {.executor = *executor})));
}
#endif

/// A folder of cgroup files, as the kernel presents them.
class Cgroups {
 public:
  Cgroups() : root_(::testing::TempDir() + "attn_cgroups_" + std::to_string(getpid())) {}
  ~Cgroups() { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  double quota(const std::string& membership) const {
    write("membership", membership);
    return detail::least_cpu_quota(root_ + "/membership", root_ + "/fs");
  }

 private:
  std::string root_;
};

TEST(Parallel, QuotasOfContainersAreRead) {
  EXPECT_EQ(Cgroups().quota("0::/\n"), 0);
  EXPECT_EQ(detail::least_cpu_quota("/nowhere", "/nowhere"), 0);
  {
    const Cgroups c;  // version 2, from inside the container
    c.write("fs/cpu.max", "150000 100000\n");
    EXPECT_EQ(c.quota("0::/\n"), 1.5);
    c.write("fs/cpu.max", "max 100000\n");
    EXPECT_EQ(c.quota("0::/\n"), 0);
    c.write("fs/cpu.max", "-1 100000\n");
    EXPECT_EQ(c.quota("0::/\n"), 0);
    c.write("fs/cpu.max", "rubbish");
    EXPECT_EQ(c.quota("0::/\n"), 0);
  }
  {
    const Cgroups c;  // a service in a slice: the enclosing quota counts, too
    c.write("fs/system.slice/cpu.max", "400000 100000\n");
    c.write("fs/system.slice/one.service/cpu.max", "max 100000\n");
    EXPECT_EQ(c.quota("0::/system.slice/one.service\n"), 4);
    c.write("fs/system.slice/one.service/cpu.max", "300000 100000\n");
    EXPECT_EQ(c.quota("0::/system.slice/one.service\n"), 3);
    EXPECT_EQ(c.quota("0::/other.slice\n"), 0);
  }
  {
    const Cgroups c;  // version 1
    c.write("fs/cpu/docker/ab/cpu.cfs_quota_us", "250000\n");
    c.write("fs/cpu/docker/ab/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(c.quota("12:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n"), 2.5);
    EXPECT_EQ(c.quota("12:memory:/docker/ab\n4:cpuset:/docker/ab\n"), 0);
    c.write("fs/cpu/docker/ab/cpu.cfs_quota_us", "-1\n");
    EXPECT_EQ(c.quota("4:cpuacct,cpu:/docker/ab\n"), 0);
  }
}

TEST(Parallel, ManyPoolsAreCreatedAndDestroyed) {
  Random random(5);
  const Inputs in({1, 4, 4, 20, 20, 4, 4}, random);
  Arguments<float> a(in);
  const auto expected = flash(a);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(same_bits(expected, flash(a, full(), {.executor = threads(1 + i % 4)})));
}

}  // namespace
}  // namespace attn::test
