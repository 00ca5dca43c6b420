// One row of the comparison: checks all contestants, then times them and the yardsticks in turn.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "equality.h"
#include "memory.h"
#include "peak.h"
#include "progress.h"
#include "timing.h"

namespace bench {

struct Measurement {
  Timing time = {};
  double flops_per_second = 0;
  std::ptrdiff_t extra_bytes = 0;
};

/// Results of one row; rates in flop/s.
struct RowResult {
  Workload work;
  std::vector<std::optional<Measurement>> of;  ///< one per contestant; empty if it cannot run the row
  std::vector<std::string_view> declined;      ///< one per contestant: why it cannot run the row
  double fma_peak = 0;                         ///< of all workers, median over the row
  double eigen_product = 0;                    ///< of one core, median over the row
  int rounds = 0;
};

/// Checks and times one row.
/// @throws Unequal if a contestant's result is wrong.
template <class T>
RowResult measure_row(const Workload& work, const attn::Options& options, const Budget& budget, Progress& progress) {
  progress.say("checking");
  check_against_oracle<T>(work, options);

  const Inputs<T> in = make_inputs<T>(work);
  const auto& all = contestants<T>();
  RowResult result;
  result.work = work;
  result.of.resize(all.size());

  std::vector<attn::Tensor<T, 4>> outs(all.size());
  std::vector<std::function<void()>> calls;
  std::vector<std::size_t> who;
  for (std::size_t c = 0; c < all.size(); ++c) {
    result.declined.push_back(all[c].declines(work, options));
    if (!result.declined[c].empty()) continue;
    outs[c] = make_output<T>(work);
    calls.push_back(all[c].prepare(outs[c], in, work, options));
    who.push_back(c);
    // Memory is measured in the first call, before workspaces exist.
    result.of[c] = Measurement{.extra_bytes = extra_memory(calls.back())};
    if (c != who.front())
      expect_within(all[c].name, work, all[who.front()].name.c_str(), max_difference(outs[c], outs[who.front()]),
                    allowed_between_two(in));
  }

  static EigenProduct<T> product;
  std::vector<double> peaks, products;
  const std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
    constexpr int kYardsticks = 9;  // enough for a median, little time on rows with hundreds of rounds
    progress.round(round, rounds);
    if (round % std::max(rounds / kYardsticks, 1) == 0) {
      peaks.push_back(measure_fma_peak<T>(options.executor));
      products.push_back(product.measure());
    }
    result.rounds = rounds;
  });

  for (std::size_t i = 0; i < who.size(); ++i) {
    result.of[who[i]]->time = times[i];
    result.of[who[i]]->flops_per_second = flops(work) / times[i].seconds;
  }
  result.fma_peak = median(std::move(peaks));
  result.eigen_product = median(std::move(products));
  return result;
}

}  // namespace bench
