#include "results.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <fstream>
#include <stdexcept>

namespace bench {

void Results::write_json(const std::string& path) const {
  std::ofstream file(path);
  for (const auto& [key, value] : context_) benchmark::AddCustomContext(key, value);
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&file);
  if (!benchmark::BenchmarkReporter::Context::executable_name)
    benchmark::BenchmarkReporter::Context::executable_name = "attn";
  if (!reporter.ReportContext(benchmark::BenchmarkReporter::Context()))
    throw std::runtime_error("cannot write " + path);

  std::vector<benchmark::BenchmarkReporter::Run> runs;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& [name, timing, counters] = entries_[i];
    benchmark::BenchmarkReporter::Run run;
    run.run_name.function_name = name;
    run.family_index = static_cast<std::int64_t>(i);
    run.per_family_instance_index = 0;
    run.repetitions = 1;
    run.repetition_index = 0;
    run.iterations = timing.calls;
    run.time_unit = benchmark::kNanosecond;
    // The reporter divides by the iterations again.
    run.real_accumulated_time = timing.seconds * static_cast<double>(timing.calls);
    run.cpu_accumulated_time = timing.cpu_seconds * static_cast<double>(timing.calls);
    for (const auto& [counter, value] : counters)
      if (std::isfinite(value)) run.counters[counter] = benchmark::Counter(value);
    runs.push_back(std::move(run));
  }
  reporter.ReportRuns(runs);
  reporter.Finalize();
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace bench
