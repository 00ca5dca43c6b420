// The results of a comparison as a table, as a chart and as comma-separated values.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "measure.h"
#include "table.h"

namespace bench {

/// One run: who competed, under which conditions, and what came out.
struct Report {
  std::vector<std::string> contestants;  ///< the first is the one that the others are compared with
  int threads = 1;
  std::vector<std::string> conditions;  ///< processor, compiler, yardsticks: lines for people
  std::vector<RowResult> rows;
};

void print_table(std::ostream& out, const Report& report);

/// One line for each row and contestant, with raw numbers. @throws std::runtime_error if the file cannot be written.
void write_csv(const std::string& path, const Report& report);

/// @throws std::runtime_error if the file cannot be written.
void write_chart(const std::string& path, const Report& report);

}  // namespace bench
