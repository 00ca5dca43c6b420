// Google Benchmark suite: every contestant over lengths and head sizes, full and causal, float and double, on one
// thread and on all. Select with --benchmark_filter, e.g. --benchmark_filter='flash/float/causal/N:4096/D:64/.*serial'.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "contestants.h"
#include "memory.h"
#include "peak.h"

namespace {

using namespace bench;

/// Returns the FMA peak of an executor, measured once per process. It is the best of several measurements, because
/// other load can only lower it.
template <class T>
double peak_of(bool serial, const attn::Executor& executor) {
  constexpr int kTries = 9;
  static double peaks[2] = {0, 0};
  double& peak = peaks[serial];
  if (peak == 0)
    for (int i = 0; i < kTries; ++i) peak = std::max(peak, measure_fma_peak<T>(executor));
  return peak;
}

template <class T>
void run(benchmark::State& state, const Contestant<T>& contestant, const Workload& work, bool serial) {
  const attn::Options options{.executor = serial ? attn::serial() : attn::threads()};
  const Inputs<T> in = make_inputs<T>(work);
  auto out = make_output<T>(work);
  const auto call = contestant.prepare(out, in, work, options);
  const double peak = peak_of<T>(serial, options.executor);
  const auto extra = extra_memory(call);
  const double time = seconds([&] {
    for ([[maybe_unused]] auto _ : state) call();
  });
  // Plain counters: rates would be printed with another "/s".
  const double rate = flops(work) * static_cast<double>(state.iterations()) / time;
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["of_peak"] = rate / peak;
  if (memory_is_counted()) state.counters["extra_MiB"] = static_cast<double>(extra) / (1024 * 1024);
}

template <class T>
void add_all(Scalar scalar) {
  for (const Contestant<T>& contestant : contestants<T>())
    for (const ModSet mod_set : {ModSet::full, ModSet::causal})
      for (const bool serial : {true, false})
        for (const Index dim : {32, 64, 128})
          for (Index n = 64; n <= 8192; n *= 2) {
            Workload work;
            work.scalar = scalar;
            work.mod_set = mod_set;
            work.q_len = work.kv_len = n;
            work.head_dim = work.v_dim = dim;
            const std::string label = contestant.name + "/" + std::string(name(scalar)) + "/" +
                                      std::string(name(mod_set)) + "/N:" + std::to_string(n) +
                                      "/D:" + std::to_string(dim) + (serial ? "/serial" : "/all_threads");
            benchmark::RegisterBenchmark(
                label.c_str(),
                [&contestant, work, serial](benchmark::State& state) { run<T>(state, contestant, work, serial); })
                ->Unit(benchmark::kMillisecond)
                ->UseRealTime();
          }
}

/// Translates `--json FILE`, which all benchmarks have, into Google Benchmark's options.
std::vector<std::string> translated(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (std::size_t i = 1; i + 1 < arguments.size(); ++i)
    if (arguments[i] == "--json") {
      arguments[i + 1].insert(0, "--benchmark_out=");
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
    }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments = translated(argc, argv);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  argc = static_cast<int>(pointers.size());
  argv = pointers.data();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add_all<float>(Scalar::float32);
  add_all<double>(Scalar::float64);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
