// Results of a comparison as a table, a chart, CSV and JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "chart.h"
#include "measure.h"
#include "results.h"
#include "table.h"

namespace bench {

/// One run: contestants, conditions and results.
struct Report {
  std::vector<std::string> contestants;  ///< the others are compared with the first
  int threads = 1;
  std::vector<std::string> conditions;  ///< lines about processor, compiler and yardsticks
  std::vector<RowResult> rows;
};

void print_table(std::ostream& out, const Report& report);

/// Writes one line per row and contestant, with raw numbers. @throws std::runtime_error if the file cannot be written.
void write_csv(const std::string& path, const Report& report);

BarChart chart_of(const Report& report);

/// Adds an entry per row and contestant.
void add_results(Results& results, const Report& report);

}  // namespace bench
