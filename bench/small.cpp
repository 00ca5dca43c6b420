// Times small calls, where checks, dispatch and packing cost as much as the products: one head of few queries and one
// token of several heads against Eigen code written by hand, and row-major against column-major matrices. Float, on the
// calling thread; all runs are interleaved.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "program.h"
#include "progress.h"
#include "small_call.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;

std::string text(const Sizes& s) {
  const std::string head = std::to_string(s.q_len) + " x " + std::to_string(s.kv_len) + " x " + std::to_string(s.dim);
  return s.heads == 1 ? head : std::to_string(s.heads) + " heads, " + head;
}

/// Variants at some sizes, timed in turn. All are compared with the first.
struct Comparison {
  std::string name;
  std::vector<std::string> variants;
  std::vector<Sizes> sizes;
  std::function<std::vector<std::function<void()>>(const Sizes&)> calls_of;
  bool reads_once = false;  ///< whether all variants read keys and values once, so that rates can be compared
};

/// Returns the bytes of all keys and values.
double kv_bytes(const Sizes& s) { return static_cast<double>(2 * s.heads * s.kv_len * s.dim) * sizeof(float); }

/// Returns the index of a variant in the legend, and adds it if its name is new.
std::size_t series_of(const std::string& variant, BarChart& chart) {
  const auto known = std::find(chart.series.begin(), chart.series.end(), variant);
  const auto number = static_cast<std::size_t>(known - chart.series.begin());
  if (known == chart.series.end()) chart.series.push_back(variant);
  return number;
}

/// Measures a comparison, prints its table and adds its bars to the chart.
void measure(const Comparison& comparison, const Budget& budget, Progress& progress, Results& results,
             BarChart& chart) {
  const auto& variants = comparison.variants;
  Table table(1);
  table.column("queries x keys x features", "");
  for (const std::string& variant : variants) {
    table.column(variant, "time");
    if (variant != variants.front()) table.column(variant, "ratio");
    if (comparison.reads_once) table.column(variant, "GB/s");
  }
  for (const Sizes& s : comparison.sizes) {
    progress.begin_row(text(s));
    const std::vector<Timing> times =
        interleaved(comparison.calls_of(s), budget, [&](int round, int rounds) { progress.round(round, rounds); });
    std::vector<std::string> row{text(s)};
    BarChart::Group group{.name = text(s), .detail = "", .bars = {}, .mark = 1};
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double ratio = times[i].seconds / times[0].seconds;
      row.push_back(time_text(times[i].seconds));
      if (i > 0) row.push_back(fixed(ratio, 2));
      group.bars.push_back({series_of(variants[i], chart), {{1 / ratio, time_text(times[i].seconds)}}});
      Counters counters{{"of_first_variants_time", ratio}};
      if (comparison.reads_once) {
        const double rate = kv_bytes(s) / times[i].seconds;
        row.push_back(fixed(rate / 1e9, 0));
        counters.emplace_back("bytes_per_second", rate);
      }
      results.add(comparison.name + "/" + text(s) + "/" + variants[i], times[i], counters);
    }
    table.row(row);
    if (&s == &comparison.sizes.front()) group.heading = comparison.name + ": " + variants[0] + " = 1";
    chart.groups.push_back(std::move(group));
  }
  progress.clear();
  table.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  Program program(
      "small", "Times small calls against products written by hand, and column-major matrices against row-major ones.");
  return program.main(argc, argv, [&] {
    const Budget budget = program.quick() ? Budget{0.01, 3} : Budget{1, 31};
    const Comparison by_hand{"One head",
                             {"by hand, Eigen", "attention()", "attention_into()", "with a workspace"},
                             {{1, 1, 8},
                              {1, 16, 64},
                              {8, 8, 16},
                              {1, 256, 64},
                              {16, 16, 64},
                              {64, 64, 64},
                              {1, 1000, 64},
                              {2, 1000, 64},
                              {5, 1000, 64},
                              {8, 1000, 64},
                              {16, 1000, 64},
                              {8, 1000, 128}},
                             [](const Sizes& s) {
                               using Call = SmallCall<RowMajor>;
                               return equal_variants(
                                   std::make_shared<Call>(s),
                                   {&Call::by_hand, &Call::allocating, &Call::into, &Call::into_with_workspace});
                             }};
    const Comparison one_token{
        "One token",
        {"by hand, Eigen", "with a workspace", "over a KvCache", "reading keys and values"},
        {{1, 64, 32, 8},
         {1, 128, 64, 8},
         {1, 256, 64, 8},
         {1, 512, 64, 8},
         {1, 2048, 64, 8},
         {1, 100, 64},
         {1, 1000, 64},
         {1, 4000, 64}},
        [](const Sizes& s) {
          const auto call = std::make_shared<OneToken>(s);
          auto calls = equal_variants(call, {&OneToken::by_hand, &OneToken::into, &OneToken::over_cache});
          calls.push_back([call] { call->read(); });
          return calls;
        },
        true};
    const Comparison orders{
        "Storage orders, row-major first",
        {"with a workspace", "column-major"},
        {{1, 1024, 64}, {8, 8, 16}, {64, 64, 64}, {256, 256, 64}, {1024, 1024, 64}, {4096, 4096, 64}},
        [](const Sizes& s) {
          const auto rows = std::make_shared<SmallCall<RowMajor>>(s);
          const auto columns = std::make_shared<SmallCall<ColMajor>>(s);
          return std::vector<std::function<void()>>{[rows] { rows->into_with_workspace(); },
                                                    [columns] { columns->into_with_workspace(); }};
        }};
    BarChart chart{
        .title = "Small calls",
        .notes = {"Float, on the calling thread, one head unless stated otherwise: queries x keys x features"},
        .series = {},
        .mark = "as fast as the first variant",
        .axes = {{"Speed: longer is better", "times the speed of the first variant", BarChart::Scale::linear, " ×"}}};
    Progress progress(by_hand.sizes.size() + one_token.sizes.size() + orders.sizes.size());
    measure(by_hand, budget, progress, program.results(), chart);
    std::cout << '\n';
    measure(one_token, budget, progress, program.results(), chart);
    std::cout << '\n';
    measure(orders, budget, progress, program.results(), chart);
    program.draw(chart);
  });
}
