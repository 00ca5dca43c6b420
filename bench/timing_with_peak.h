// Interleaved timing, with the FMA peak measured before each round.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <attn/executor.h>

#include "peak.h"
#include "progress.h"
#include "timing.h"

namespace bench {

/// Times of calls, and the FMA peak of their workers: medians over the rounds, the peak in flop/s.
struct TimesAndPeak {
  std::vector<Timing> times;
  double peak;
};

/// interleaved(), with the FMA peak for T measured before each round, so that changes of the clock frequency affect
/// calls and peak alike.
template <class T>
TimesAndPeak interleaved_with_peak(const std::vector<std::function<void()>>& calls, const Budget& budget,
                                   const attn::Executor& executor, Progress& progress) {
  std::vector<double> peaks;
  std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
    progress.round(round, rounds);
    peaks.push_back(measure_fma_peak<T>(executor));
  });
  return {std::move(times), median(std::move(peaks))};
}

}  // namespace bench
