// Draws attn's speed relative to hand-written Eigen code as heat maps over lengths and head sizes: as many queries as
// keys, and one query; row-major and column-major. One head, float, on the calling thread, with a workspace.
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "heat_map.h"
#include "program.h"
#include "progress.h"
#include "small_call.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;

/// Returns the time of the hand-written call relative to that of attn.
template <class Matrix>
double ratio(const Sizes& sizes, const Budget& budget, const std::string& name, Results& results) {
  SmallCall<Matrix> call(sizes);
  const std::vector<Timing> times =
      interleaved({[&] { call.into_with_workspace(); }, [&] { call.by_hand(); }}, budget, [](int, int) {});
  const double ratio = times[1].seconds / times[0].seconds;
  results.add(name, times[0], {{"of_eigens_speed", ratio}});
  return ratio;
}

void print(const HeatMap& map) {
  std::cout << map.title << '\n';
  Table table(1);
  table.column(map.row_name, "");
  for (const long c : map.columns) table.column(map.column_name, std::to_string(c));
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    std::vector<std::string> row{std::to_string(map.rows[r])};
    for (const double x : map.ratios[r]) row.push_back(fixed(x, 2));
    table.row(row);
  }
  table.print(std::cout);
  std::cout << '\n';
}

void run(Program& program) {
  const bool quick = program.quick();
  const Budget budget = quick ? Budget{0.002, 3} : Budget{0.02, 15};
  const std::vector<long> dims = quick ? std::vector<long>{4, 64} : std::vector<long>{4, 8, 16, 32, 64, 128},
                          lengths = quick ? std::vector<long>{1, 17, 64}
                                          : std::vector<long>{1, 2, 4, 5, 8, 16, 17, 24, 32, 48, 64, 96, 128, 256},
                          caches = quick ? std::vector<long>{1, 100}
                                         : std::vector<long>{1, 4, 16, 17, 64, 100, 256, 300, 1000, 1024, 4000};
  std::vector<HeatMap> maps;
  Progress progress(4 * dims.size());
  const auto add = [&](const std::string& title, bool square, const auto& ratio_of) {
    HeatMap map{title, "D", square ? "N" : "M", dims, square ? lengths : caches, {}};
    for (const long d : dims) {
      progress.begin_row(title + ", D = " + std::to_string(d));
      map.ratios.emplace_back();
      for (const long n : map.columns) {
        const std::string name = title + "/" + map.column_name + "=" + std::to_string(n) + " D=" + std::to_string(d);
        map.ratios.back().push_back(ratio_of(Sizes{square ? n : 1, n, d}, name));
      }
    }
    maps.push_back(std::move(map));
  };
  const auto rows = [&](const Sizes& s, const std::string& name) {
    return ratio<RowMajor>(s, budget, name, program.results());
  };
  const auto columns = [&](const Sizes& s, const std::string& name) {
    return ratio<ColMajor>(s, budget, name, program.results());
  };
  add("N queries and keys, row-major", true, rows);
  add("N queries and keys, column-major", true, columns);
  add("one query of M keys, row-major", false, rows);
  add("one query of M keys, column-major", false, columns);
  progress.clear();
  for (const HeatMap& map : maps) print(map);
  program.draw(svg_of("Speed relative to hand-written Eigen products", maps));
}

}  // namespace

int main(int argc, char** argv) {
  Program program("heatmap",
                  "Draws the speed of a call relative to products written by hand with Eigen, over lengths and sizes.");
  return program.main(argc, argv, [&] { run(program); });
}
