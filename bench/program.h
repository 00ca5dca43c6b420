// What all benchmarks have in common: their options, the files they write and how they end.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "chart.h"
#include "results.h"

namespace bench {

/// A benchmark with the options --quick, --svg FILE and --json FILE. Its picture and its numbers go to <name>.svg and,
/// beside it, <name>.json, unless those say something else.
class Program {
 public:
  Program(std::string name, const std::string& description);

  CLI::App& options() { return app_; }  ///< for more of them
  bool quick() const { return quick_; }
  Results& results() { return results_; }

  /// Parses, runs, and writes the numbers; returns the exit code. What `run` throws is a line on standard error.
  int main(int argc, char** argv, const std::function<void()>& run);

  /// Writes nothing: one of the processes of a run does.
  void be_silent() { is_silent_ = true; }

  /// The picture, which run() makes at its end.
  void draw(const std::string& svg) { picture_ = svg; }
  void draw(const BarChart& chart) { draw(svg_of(chart)); }

 private:
  void write() const;

  std::string name_, svg_, json_, picture_;
  CLI::App app_;
  bool quick_ = false, is_silent_ = false;
  Results results_;
};

/// Minutes of work must not end in "cannot write". @throws std::runtime_error if the file cannot be opened.
void expect_writable(const std::string& path);

}  // namespace bench
