// Results of a run as JSON in the format of Google Benchmark.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "timing.h"

namespace bench {

/// Values reported with the times: rates per second, shares (1: all), bytes.
using Counters = std::vector<std::pair<std::string, double>>;

/// Results in Google Benchmark's JSON, which its tools/compare.py and plotting tools can read. There is an entry per
/// workload and variant, with median times. Its iterations are the number of timed calls.
class Results {
 public:
  /// Adds an entry. `name` is the workload and the variant, e.g. "N=2048 D=64/backward", and must be unique in a run.
  /// Counters that are not finite are omitted, because JSON cannot represent them.
  void add(std::string name, const Timing& timing, Counters counters = {}) {
    entries_.push_back({std::move(name), timing, std::move(counters)});
  }

  /// Adds a property of the whole run to the context, e.g. ("instruction_set", "avx512").
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
