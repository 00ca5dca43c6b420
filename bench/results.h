// The numbers of a run for other programs, in the format of Google Benchmark.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "timing.h"

namespace bench {

/// Numbers beside the times: rates per second, shares (1: all), bytes.
using Counters = std::vector<std::pair<std::string, double>>;

/// What was measured, in Google Benchmark's JSON, which its tools/compare.py and whatever draws its results can read.
/// There is an entry for each way to do each work. Its times are medians, and its iterations are all calls that were
/// timed.
class Results {
 public:
  /// Adds an entry. `name` is the work and the way, e.g. "N=2048 D=64/backward", and occurs once in a run. Counters
  /// that are not finite are left out, because JSON has no such numbers.
  void add(std::string name, const Timing& timing, Counters counters = {}) {
    entries_.push_back({std::move(name), timing, std::move(counters)});
  }

  /// Adds something about the whole run to the context, e.g. ("instruction_set", "avx512").
  void about(std::string key, std::string value) { context_.emplace_back(std::move(key), std::move(value)); }

  /// Writes all entries, with times in nanoseconds. @throws std::runtime_error if the file cannot be written.
  void write_json(const std::string& path) const;

 private:
  struct Entry {
    std::string name;
    Timing timing;
    Counters counters;
  };
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> context_;
};

}  // namespace bench
