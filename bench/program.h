// What all benchmarks have in common: their options, the files they write and how they end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chart.h"
#include "results.h"

namespace CLI {
class App;
}

namespace bench {

/// A benchmark with the options --quick, --svg FILE and --json FILE. Unless these say something else, its picture goes
/// to <name>.svg and its numbers to <name>.json beside it. More options are added by the functions here, because CLI11
/// takes the compiler seconds in each unit that includes it.
class Program {
 public:
  Program(std::string name, const std::string& description);
  ~Program();

  /// A number in least..most: an int, an attn::Index, a double or a std::vector<double>. What it is before is its
  /// default, which --help shows unless it lies below that range.
  template <class Number>
  void number(const std::string& option, Number& value, const std::string& what, double least, double most);
  /// One of these numbers.
  void number_among(const std::string& option, double& value, const std::string& what, std::vector<double> values);
  void text(const std::string& option, std::string& value, const std::string& what);
  void flag(const std::string& option, bool& value, const std::string& what);

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
  std::unique_ptr<CLI::App> app_;
  bool quick_ = false, is_silent_ = false;
  Results results_;
};

/// Fails early if a file cannot be written, because minutes of work must not end in "cannot write". @throws
/// std::runtime_error
void expect_writable(const std::string& path);

}  // namespace bench
