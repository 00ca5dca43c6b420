// Measures strong scaling: calls from one token to 8192 × 8192 on 1, 2, 4, … threads, each timed separately, and
// attention written by hand with Eigen, whose heads OpenMP distributes. --model predicts more threads: tasks are timed
// one by one on this machine and distributed by a model of the pool.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "peak.h"
#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "table.h"
#include "thread_model.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

using Call = std::function<void(const attn::Executor&)>;

struct Sizes {
  Index batch = 1, heads = 8, kv_heads = 8, q_len, kv_len, dim;
};

/// Tensors of a call.
struct Inputs {
  explicit Inputs(const Sizes& s)
      : q(random_tensor({s.batch, s.heads, s.q_len, s.dim}, 1)),
        k(random_tensor({s.batch, s.kv_heads, s.kv_len, s.dim}, 2)),
        v(random_tensor({s.batch, s.kv_heads, s.kv_len, s.dim}, 3)),
        out({s.batch, s.heads, s.q_len, s.dim}) {}
  attn::Tensor<float, 4> q, k, v, out;
};

/// A call, constructed when it is timed and destroyed afterwards: some use hundreds of megabytes.
struct Work {
  std::string name;
  std::function<Call()> attn;
  std::function<std::function<void(int threads)>()> by_hand = nullptr;  ///< null if there is none
  bool is_long = false;                                                 ///< skipped by --quick
};

template <class Mods>
std::function<Call()> forward(const Sizes& s, const Mods& mods) {
  return [=]() -> Call {
    const auto x = std::make_shared<Inputs>(s);
    return [=](const attn::Executor& executor) {
      attn::attention_into(x->out, x->q, x->k, x->v, mods, {.executor = executor});
    };
  };
}

template <class Mods>
std::function<Call()> backward(const Sizes& s, const Mods& mods) {
  return [=]() -> Call {
    const auto x = std::make_shared<Inputs>(s);
    const auto grads = std::make_shared<Inputs>(s);
    const auto lse = std::make_shared<attn::Tensor<float, 3>>(attn::Shape<3>{s.batch, s.heads, s.q_len});
    attn::attention_into(x->out, *lse, x->q, x->k, x->v, mods);
    return [=](const attn::Executor& executor) {
      attn::attention_backward_into(grads->q, grads->k, grads->v, grads->out, x->q, x->k, x->v, x->out, *lse, mods,
                                    {.executor = executor});
    };
  };
}

/// Attention written by hand with Eigen; OpenMP distributes the heads.
std::function<std::function<void(int)>()> by_hand([[maybe_unused]] const Sizes& s) {
#if defined(_OPENMP)
  return [s]() -> std::function<void(int)> {
    const auto x = std::make_shared<Inputs>(s);
    return [=](int threads) {
      const float scale = 1 / std::sqrt(static_cast<float>(s.dim));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
      for (Index i = 0; i < s.batch * s.heads; ++i) {
        const Index b = i / s.heads, h = i % s.heads, kv_head = h / (s.heads / s.kv_heads);
        Eigen::MatrixXf scores = scale * x->q.matrix(b, h) * x->k.matrix(b, kv_head).transpose();
        scores = (scores.colwise() - scores.rowwise().maxCoeff()).array().exp().matrix();
        scores.array().colwise() /= scores.rowwise().sum().array().eval();
        x->out.matrix(b, h).noalias() = scores * x->v.matrix(b, kv_head);
      }
    };
  };
#else
  return nullptr;
#endif
}

std::vector<Work> works() {
  const auto full = attn::full();
  const auto causal = attn::causal();
  std::vector<Index> lengths;  // from 100 to 7975 keys
  for (Index i = 0; i < 16; ++i) lengths.push_back(100 + 35 * i * i);
  const auto both = [&](std::string name, const Sizes& s) {
    return Work{std::move(name), forward(s, full), by_hand(s)};
  };
  return {
      both("one token, 8 heads, 128 keys of 64", {.q_len = 1, .kv_len = 128, .dim = 64}),
      both("one token, 8 heads, 1024 keys of 64", {.q_len = 1, .kv_len = 1024, .dim = 64}),
      both("one token, 32 heads on 8, 16384 keys of 128",
           {.heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 16384, .dim = 128}),
      both("8 heads, 64 x 64 x 64", {.q_len = 64, .kv_len = 64, .dim = 64}),
      both("32 x 8 heads, 64 x 64 x 64", {.batch = 32, .q_len = 64, .kv_len = 64, .dim = 64}),
      both("8 x 12 heads, 197 x 197 x 64",
           {.batch = 8, .heads = 12, .kv_heads = 12, .q_len = 197, .kv_len = 197, .dim = 64}),
      both("8 heads, 2048 x 2048 x 64", {.q_len = 2048, .kv_len = 2048, .dim = 64}),
      {"1 head, 4096 x 4096 x 64, causal",
       forward({.heads = 1, .kv_heads = 1, .q_len = 4096, .kv_len = 4096, .dim = 64}, causal)},
      {"16 x 4 heads, 64 x 100 ... 7975 x 64, by lengths",
       forward({.batch = 16, .heads = 4, .kv_heads = 4, .q_len = 64, .kv_len = 7975, .dim = 64},
               attn::key_lengths(lengths))},
      {"8 heads, 8192 x 8192 x 64", forward({.q_len = 8192, .kv_len = 8192, .dim = 64}, full), nullptr, true},
      {"backward, 12 x 4 heads, 64 x 64 x 32, causal",
       backward({.batch = 12, .heads = 4, .kv_heads = 4, .q_len = 64, .kv_len = 64, .dim = 32}, causal)},
      {"backward, 1 head, 4096 x 4096 x 64",
       backward({.heads = 1, .kv_heads = 1, .q_len = 4096, .kv_len = 4096, .dim = 64}, full)},
  };
}

/// Times of consecutive calls, with nothing else in between: threads of another pool that still spin would slow them
/// down.
struct Spread {
  double least, median;
  std::int64_t calls;
};
Spread spread_of(const std::function<void()>& call, double budget) {
  call();
  const double once = std::max(seconds(call), 1e-7);
  const auto count = static_cast<std::size_t>(std::clamp(budget / once, 3.0, 2000.0));
  std::vector<double> times;
  for (std::size_t i = 0; i < count; ++i) times.push_back(seconds(call));
  return {*std::min_element(times.begin(), times.end()), median(times), static_cast<std::int64_t>(count)};
}

struct Settings {
  int threads = 0, model = 0;
  std::string only;
};

void measure(Program& program, const Settings& settings, const std::vector<Work>& all) {
  const std::vector<int> counts = doubled_up_to(settings.threads);
  const double budget = program.quick() ? 0.002 : 0.5;
  std::vector<attn::Executor> executors;
  for (const int n : counts) executors.push_back(attn::threads(n));
  const double peak_of_one = measure_fma_peak<float>(executors.front()),
               peak = measure_fma_peak<float>(executors.back());
  std::cout << "FMA peak " << fixed(peak_of_one / 1e9, 0) << " GFLOP/s on one thread, " << fixed(peak / 1e9, 0)
            << " on " << settings.threads << ".\n";

  Table table(1);
  table.column("", "work");
  table.column("1 thread", "minimum");
  for (const int n : counts)
    if (n > 1) table.column("speed-up: by minimum, by median", std::to_string(n));
  table.column("Eigen by hand, OpenMP", "relative to attn");
  BarChart chart{.title = "Attention on several threads",
                 .notes = {"Float; speed relative to one thread, from the minimum times of consecutive calls"},
                 .series = {},
                 .mark = "one thread",
                 .axes = {{"Speed: longer is better", "times the speed of one thread", BarChart::Scale::linear, " x"}}};
  for (const int n : counts) chart.series.push_back(std::to_string(n) + (n == 1 ? " thread" : " threads"));
  Progress progress(all.size());
  for (const Work& work : all) {
    progress.begin_row(work.name);
    const Call call = work.attn();
    std::vector<std::string> row{work.name};
    BarChart::Group group{.name = work.name, .detail = "", .bars = {}, .mark = 1};
    double alone = 0, alone_median = 0, last = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const Spread time = spread_of([&] { call(executors[i]); }, budget);
      last = time.least;
      if (i == 0) {
        alone = time.least, alone_median = time.median;
        row.push_back(time_text(alone));
      } else {
        row.push_back(fixed(alone / time.least, 2) + ", " + fixed(alone_median / time.median, 2));
      }
      group.bars.push_back({i, {{alone / time.least, time_text(time.least)}}});
      program.results().add(work.name + "/threads=" + std::to_string(counts[i]), Timing{time.median, 0, time.calls},
                            {{"speed_up", alone / time.least}, {"least_seconds", time.least}});
    }
    std::string rival;
    if (work.by_hand) {
      const auto other = work.by_hand();
      rival = fixed(spread_of([&] { other(settings.threads); }, budget).least / last, 1) + " x";
    }
    row.push_back(rival);
    table.row(row);
    chart.groups.push_back(std::move(group));
  }
  progress.clear();
  table.print(std::cout);
  program.draw(chart);
}

void print_model(Program& program, const Settings& settings, const std::vector<Work>& all) {
  const std::vector<int> counts = doubled_up_to(settings.model);
  const PoolCosts costs;
  const int runs = program.quick() ? 1 : 5;
  std::cout << "\nThe model assumes that sending a cache line to another core takes " << fixed(1e3 * costs.transfer, 0)
            << " ns, that waking a thread takes " << fixed(costs.wake, 0) << " µs, and that it starts "
            << fixed(costs.latency, 0)
            << " µs later.\nIn the model each core has its own memory and caches; real cores share them.\n\n";
  Table table(1);
  table.column("", "work");
  table.column("alone", "time");
  for (const int n : counts)
    if (n > 1) table.column("speed-up, threads awake / asleep", std::to_string(n));
  table.column(std::to_string(settings.model) + " threads, awake", "idle");
  table.column(std::to_string(settings.model) + " threads, awake", "critical path");
  table.column(std::to_string(settings.model) + " threads, asleep", "wakes");
  Progress progress(all.size());
  for (const Work& work : all) {
    progress.begin_row(work.name);
    const Call call = work.attn();
    std::vector<std::string> row{work.name};
    double alone = 0;
    Prediction awake, asleep;
    for (const int n : counts) {
      awake = predicted(call, n, false, runs);
      asleep = n == 1 ? awake : predicted(call, n, true, runs);
      if (n == 1) {
        alone = awake.time;
        row.push_back(time_text(1e-6 * alone));
      } else {
        row.push_back(fixed(alone / awake.time, 1) + " / " + fixed(alone / asleep.time, 1));
      }
      program.results().add(work.name + "/model=" + std::to_string(n), Timing{1e-6 * awake.time, 0, 1},
                            {{"speed_up", alone / awake.time},
                             {"speed_up_asleep", alone / asleep.time},
                             {"wakes", static_cast<double>(asleep.wakes)}});
    }
    row.push_back(fixed(100 * awake.idle / (awake.time * settings.model), 0) + " %");
    row.push_back(time_text(1e-6 * awake.critical));
    row.push_back(std::to_string(asleep.wakes));
    table.row(row);
  }
  progress.clear();
  table.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  Program program("threads", "Times calls on 1, 2, 4, ... threads, and predicts the times with more threads.");
  Settings settings;
  settings.threads = attn::threads().concurrency();
  program.number("--threads", settings.threads, "maximum number of threads to measure", 1, 1024);
  program.number("--model", settings.model, "also predict up to this many threads", 0, 1024);
  program.text("--only", settings.only, "workloads whose names contain this, e.g. token");
  return program.main(argc, argv, [&] {
    std::vector<Work> all = works();
    std::erase_if(all, [&](const Work& work) { return program.quick() && work.is_long; });
    keep_named(all, settings.only, [](const Work& work) { return work.name; });
    measure(program, settings, all);
    if (settings.model > 0) print_model(program, settings, all);
  });
}
