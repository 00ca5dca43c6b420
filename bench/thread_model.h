// Predicts the time of a call on more threads than this machine has: its tasks are timed one by one on the calling
// thread and distributed to workers by a model of the pool.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include <attn/executor.h>

namespace bench {

/// A parallel region: one call of an executor. Times in microseconds.
struct Region {
  double before;    ///< since the end of the previous region, on the calling thread
  double estimate;  ///< the library's estimate for one thread
  int workers;      ///< maximum number of workers that may share the tasks
  std::vector<double> tasks;
};

/// Reports `workers` workers, but runs all tasks on the calling thread and records how long each takes.
class RecordingBackend final : public attn::Executor::Backend {
 public:
  explicit RecordingBackend(int workers) : workers_(workers) {}

  int concurrency() const override { return is_inside_ ? 1 : workers_; }
  void run(attn::Index tasks, attn::TaskRef task) const override { run_with(concurrency(), 1e9, tasks, task); }
  void run_with(int workers, double microseconds, attn::Index tasks, attn::TaskRef task) const override {
    if (is_inside_ || !regions_) {
      for (attn::Index i = 0; i < tasks; ++i) task(i, 0);
      return;
    }
    is_inside_ = true;
    Region region{since_last(), microseconds, static_cast<int>(std::min<attn::Index>(workers, tasks)), {}};
    region.tasks.reserve(static_cast<std::size_t>(tasks));
    for (attn::Index i = 0; i < tasks; ++i) {
      task(i, 0);
      region.tasks.push_back(since_last());
    }
    regions_->push_back(std::move(region));
    since_last();
    is_inside_ = false;
  }

  /// Returns the regions of call(), and one without tasks for the time after the last.
  std::vector<Region> record(const std::function<void()>& call) const {
    std::vector<Region> regions;
    regions_ = &regions;
    since_last();
    call();
    regions.push_back({since_last(), 0, 1, {}});
    regions_ = nullptr;
    return regions;
  }

 private:
  using Clock = std::chrono::steady_clock;

  double since_last() const {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double, std::micro>(now - std::exchange(last_, now)).count();
  }

  int workers_;
  mutable bool is_inside_ = false;
  mutable std::vector<Region>* regions_ = nullptr;
  mutable Clock::time_point last_;
};

/// Costs of the pool, in microseconds.
struct PoolCosts {
  double transfer = 0.2;  ///< of a cache line between cores: a request, a task of another worker, a reply
  double wake = 7;        ///< for the thread that wakes another
  double latency = 15;    ///< until a woken thread runs
};

/// The model's prediction for a call.
struct Prediction {
  double time = 0;      ///< microseconds
  double critical = 0;  ///< microseconds on unlimited threads without costs: longest tasks, and time between regions
  double idle = 0;      ///< microseconds that workers spend waiting for the last task of a region
  int wakes = 0;
};

/// Predicts the time of a call. Each worker has a share of neighbouring tasks, and then takes tasks of the workers
/// after it. `asleep`: the helpers sleep when the first region begins; those that it wakes spin until the next.
inline Prediction predict(const std::vector<Region>& regions, bool asleep, const PoolCosts& costs) {
  constexpr int kWakesOfEach = 4;
  constexpr double kMicrosecondsToWake = 15;
  Prediction p;
  int awake = asleep ? 1 : std::numeric_limits<int>::max() / 2;
  for (const Region& region : regions) {
    p.time += region.before;
    p.critical += region.before;
    if (region.tasks.empty()) continue;
    // Threads that are awake, and as many sleeping ones as are worth waking.
    const auto sleepers = static_cast<int>(std::clamp(region.estimate / kMicrosecondsToWake - 1, 0.0, 1e6));
    const int workers = std::min(region.workers, std::max(awake, 1 + sleepers));
    std::vector<double> begins{0};
    double caller = 0;
    for (int i = 1; i < workers; ++i) {
      caller += costs.transfer;
      begins.push_back(caller + costs.transfer);
    }
    begins[0] = caller;
    for (int i = awake; i < workers; ++i) {
      const int waker = i - awake < kWakesOfEach ? 0 : awake + (i - awake) / kWakesOfEach - 1;
      double& by = begins[static_cast<std::size_t>(waker)];
      by += costs.wake;
      begins[static_cast<std::size_t>(i)] = by + costs.latency;
      ++p.wakes;
    }
    awake = std::max(awake, workers);

    using Free = std::pair<double, int>;  // a time, and the worker that is free then
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    for (int i = 0; i < workers; ++i) free.emplace(begins[static_cast<std::size_t>(i)], i);
    const auto tasks = region.tasks.size(), shares = std::min(tasks, static_cast<std::size_t>(workers));
    std::vector<std::size_t> next;
    const auto share_begins = [&](std::size_t i) { return tasks / shares * i + std::min(i, tasks % shares); };
    for (std::size_t i = 0; i < shares; ++i) next.push_back(share_begins(i));
    double last = 0, sum = 0;
    for (std::size_t done = 0; done < tasks; ++done) {
      const auto [begin, worker] = free.top();
      free.pop();
      auto share = static_cast<std::size_t>(worker) % shares;
      const auto own = share;
      while (next[share] == share_begins(share + 1)) share = (share + 1) % shares;
      const double task = region.tasks[next[share]++];
      const double end = begin + (share == own ? 0 : costs.transfer) + task;
      free.emplace(end, worker);
      last = std::max(last, end);
      sum += task;
    }
    // The caller reads each reply.
    const double time = last + costs.transfer * (workers - 1);
    p.time += time;
    p.idle += workers * time - sum;
    p.critical += *std::max_element(region.tasks.begin(), region.tasks.end());
  }
  return p;
}

/// Returns the prediction for call(executor), either right after another call or with all threads asleep: the best of
/// `runs` recorded runs.
inline Prediction predicted(const std::function<void(const attn::Executor&)>& call, int workers, bool asleep,
                            int runs) {
  const auto recording = std::make_shared<RecordingBackend>(workers);
  const attn::Executor executor(recording);
  call(executor);
  Prediction best;
  for (int i = 0; i < runs; ++i) {
    const Prediction p = predict(recording->record([&] { call(executor); }), asleep, PoolCosts{});
    if (i == 0 || p.time < best.time) best = p;
  }
  return best;
}

/// Returns 1, 2, 4, … and `most`.
inline std::vector<int> doubled_up_to(int most) {
  std::vector<int> counts;
  for (int n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  return counts;
}

}  // namespace bench
