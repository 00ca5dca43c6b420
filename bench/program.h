// The common part of all benchmarks: options, output files and exit codes.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "chart.h"
#include "results.h"

namespace CLI {
class App;
}

namespace bench {

/// A benchmark with the options --quick, --svg FILE and --json FILE. By default its chart is written to <name>.svg and
/// its numbers to a .json file of the same name. Further options are added by member functions, because CLI11 costs
/// seconds of compile time in each unit that includes it.
class Program {
 public:
  Program(std::string name, const std::string& description);
  ~Program();

  /// Adds a number in least..most: an int, an attn::Index, a double or a std::vector<double>. Its initial value is the
  /// default, which --help shows unless it is below that range.
  template <class Number>
  void number(const std::string& option, Number& value, const std::string& what, double least, double most);
  /// Adds an option that must be one of `values`.
  void number_among(const std::string& option, double& value, const std::string& what, std::vector<double> values);
  void text(const std::string& option, std::string& value, const std::string& what);
  void flag(const std::string& option, bool& value, const std::string& what);

  bool quick() const { return quick_; }
  Results& results() { return results_; }

  /// Parses options, calls run(), and writes the files. Returns the exit code. Exceptions from `run` are printed to
  /// standard error as one line.
  int main(int argc, char** argv, const std::function<void()>& run);

  /// Writes no files, for processes of a run in which another process writes them.
  void be_silent() { is_silent_ = true; }

  /// Sets the chart. run() calls it at its end.
  void draw(const std::string& svg) { picture_ = svg; }
  void draw(const BarChart& chart) { draw(svg_of(chart)); }

 private:
  void write() const;

  std::string name_, svg_, json_, picture_;
  std::unique_ptr<CLI::App> app_;
  bool quick_ = false, is_silent_ = false;
  Results results_;
};

/// Keeps the rows whose names contain `part`; name_of(row) is the name.
/// @throws std::invalid_argument, which lists the names, if there are none.
template <class Row, class NameOf>
void keep_named(std::vector<Row>& rows, const std::string& part, const NameOf& name_of) {
  std::string names;
  for (const Row& row : rows) names += (names.empty() ? "" : ", ") + name_of(row);
  std::erase_if(rows, [&](const Row& row) { return name_of(row).find(part) == std::string::npos; });
  if (rows.empty()) throw std::invalid_argument("nothing has \"" + part + "\" in its name; there are: " + names);
}

/// Fails early if a file cannot be written, so that minutes of work do not end in "cannot write". @throws
/// std::runtime_error
void expect_writable(const std::string& path);

}  // namespace bench
