// What all benchmarks have in common: their options, the files they write and how they end.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "chart.h"
#include "results.h"

namespace bench {

/// A benchmark with the options --quick, --svg FILE and --json FILE. Unless these say something else, its picture goes
/// to <name>.svg and its numbers to <name>.json beside it.
class Program {
 public:
  Program(std::string name, const std::string& description);

  CLI::App& options() { return app_; }  ///< to which more may be added
  bool quick() const { return quick_; }
  Results& results() { return results_; }

  /// Parses options, calls run(), and writes the numbers. Returns the exit code. What `run` throws is printed as a line
  /// on standard error.
  int main(int argc, char** argv, const std::function<void()>& run);

  /// Keeps this process from writing anything, where others of the same run do.
  void be_silent() { is_silent_ = true; }

  /// Sets the picture. run() calls it at its end.
  void draw(const std::string& svg) { picture_ = svg; }
  void draw(const BarChart& chart) { draw(svg_of(chart)); }

 private:
  void write() const;

  std::string name_, svg_, json_, picture_;
  CLI::App app_;
  bool quick_ = false, is_silent_ = false;
  Results results_;
};

/// Fails early if a file cannot be written, because minutes of work must not end in "cannot write". @throws
/// std::runtime_error
void expect_writable(const std::string& path);

}  // namespace bench
