// Compares naive and flash attention: checks them against each other, then times them in turn and reports the times as
// a table and a chart.
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "program.h"
#include "progress.h"
#include "report.h"
#include "rivals.h"
#include "rows.h"

namespace {

using namespace bench;

struct Settings {
  int threads = 1;
  bool extended = false;
  bool rivals = false;
  std::string filter;
  std::string csv;
};

attn::Executor executor_of(int threads) {
  if (threads == 0) return attn::threads();
  return threads == 1 ? attn::serial() : attn::threads(threads);
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#else
  return "g++ " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__);
#endif
}

/// Returns the name of the instruction set that Eigen's products use: the best one that this build was compiled for.
std::string_view eigen_set_name() {
#if defined(EIGEN_VECTORIZE_AVX512)
  return "AVX-512";
#elif defined(EIGEN_VECTORIZE_FMA)
  return "AVX2 + FMA";
#elif defined(EIGEN_VECTORIZE_AVX)
  return "AVX";
#elif defined(EIGEN_VECTORIZE)
  return "128-bit vectors";
#else
  return "no vectors";
#endif
}

/// Formats the yardsticks of one core for one scalar type, e.g. "float: FMA peak 217 GFLOP/s (AVX-512), …". Each is the
/// best of several measurements, because other load can only lower it.
template <class T>
std::string yardsticks() {
  constexpr int kTries = 9;
  EigenProduct<T> product;
  double peak = 0, eigen = 0;
  for (int i = 0; i < kTries; ++i) {
    peak = std::max(peak, measure_fma_peak<T>(attn::serial()));
    eigen = std::max(eigen, product.measure());
  }
  return "FMA peak " + fixed(peak / 1e9, 0) + " GFLOP/s (" + std::string(fma_set_name()) + "), Eigen's 1024³ product " +
         fixed(eigen / 1e9, 0) + " (" + fixed(100 * eigen / peak, 0) + " % of peak)";
}

std::vector<std::string> conditions() {
  std::ostringstream build;
  build << processor_name() << ", " << compiler_name() << ", all built with " << ATTN_BENCH_FLAGS
        << " (Eigen: " << eigen_set_name() << ")";
  return {build.str(), "one core, float: " + yardsticks<float>(), "one core, double: " + yardsticks<double>()};
}

/// Detects whether one thread gets a core to itself. If it does not, wall-clock times mean little, and the report says
/// so.
class Disturbance {
 public:
  /// Returns a line for the report; empty if the core was undisturbed.
  std::optional<std::string> note() const {
    constexpr double kQuiet = 0.93;  // short pauses are normal
    const double cpu = static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC;
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_).count();
    if (cpu >= kQuiet * wall) return std::nullopt;
    return "Warning: the machine was busy, and this program got only " + fixed(100 * cpu / wall, 0) +
           " % of its core; times are too long and uneven.";
  }

 private:
  std::clock_t cpu_ = std::clock();
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
};

std::vector<Workload> chosen_rows(const Settings& settings, bool quick) {
  const std::vector<Workload> all = rows_of(quick ? Rows::quick : settings.extended ? Rows::extended : Rows::standard);
  std::vector<Workload> rows;
  std::string others;
  for (const Workload& w : all) {
    if (label(w).find(settings.filter) != std::string::npos) rows.push_back(w);
    others += "\n  " + label(w);
  }
  if (rows.empty()) throw std::runtime_error("no row contains \"" + settings.filter + "\"; there are:" + others);
  return rows;
}

/// Estimates the duration of each row, in flops: about a second for any row, counted as 5 GFLOP, plus the row's own
/// flops.
std::vector<double> shares_of(const std::vector<Workload>& rows) {
  std::vector<double> shares;
  for (const Workload& work : rows) shares.push_back(5e9 + flops(work));
  return shares;
}

void run(Program& program, const Settings& settings) {
  if (settings.rivals) enter_rivals();
  expect_writable(settings.csv);
  const std::vector<Workload> rows = chosen_rows(settings, program.quick());
  const attn::Options options{.executor = executor_of(settings.threads)};
  const Budget budget = program.quick() ? Budget{.seconds = 0.05, .rounds = 3} : Budget{};

  Report report;
  for (const auto& c : contestants<float>()) report.contestants.push_back(c.name);
  report.threads = options.executor.concurrency();
  report.conditions = conditions();
  std::cout << "attn " << ATTN_VERSION_MAJOR << '.' << ATTN_VERSION_MINOR << '.' << ATTN_VERSION_PATCH << ", "
            << report.threads << (report.threads == 1 ? " thread\n" : " threads\n");
  for (const auto& line : report.conditions) std::cout << line << '\n';
  std::cout << std::endl;

  const Disturbance disturbance;
  Progress progress(shares_of(rows));
  for (const Workload& work : rows) {
    progress.begin_row(label(work));
    report.rows.push_back(work.scalar == Scalar::float32 ? measure_row<float>(work, options, budget, progress)
                                                         : measure_row<double>(work, options, budget, progress));
  }
  progress.clear();
  const auto note = report.threads == 1 ? disturbance.note() : std::nullopt;
  if (note) report.conditions.push_back(*note);

  print_table(std::cout, report);
  std::cout
      << "\nEvery result was checked before it was timed. Times are medians of interleaved calls; memory is the peak\n"
         "heap usage during a call; GFLOP/s count 4 B H D for each kept pair, half of all pairs for causal;\n"
         "the peak is that of all threads together, measured alongside each row.\n";
  if (note) std::cout << *note << '\n';
  program.draw(chart_of(report));
  add_results(program.results(), report);
  if (!settings.csv.empty()) {
    write_csv(settings.csv, report);
    std::cout << "Table: " << settings.csv << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  Program program("compare", "Compares naive and flash attention: checks that they agree, then times them in turn.");
  Settings settings;
  program.number("--threads", settings.threads, "number of threads; 0: all of the machine", 0, 1024);
  program.flag("--extended", settings.extended, "also mods, windows, shared heads, one query, more keys than queries");
  program.flag("--rivals", settings.rivals, "also other libraries: oneDNN's products and softmax, if it was found");
  program.text("--filter", settings.filter, "only rows whose description contains this, e.g. \"N=4096\" or causal");
  program.text("--csv", settings.csv, "file for the raw numbers, as a table");
  return program.main(argc, argv, [&] { run(program, settings); });
}
