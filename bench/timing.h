// Interleaved timing: contestants take turns and medians are compared, because the speed of a machine drifts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <vector>

namespace bench {

/// Returns the wall-clock seconds of `call`.
template <class F>
double seconds(F&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the median, which is the mean of the two middle values if their number is even. NaN if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// How long to time: each contestant at least this long and this many rounds.
struct Budget {
  double seconds = 0.3;
  int rounds = 5;
};

/// The time of one call: medians over the rounds.
struct Timing {
  double seconds = 0;      ///< wall clock
  double cpu_seconds = 0;  ///< of all threads of the process
  std::int64_t calls = 0;  ///< number of timed calls
};

/// Times `calls` in turn, A B C A B C …, so that drift of the machine's speed affects all of them alike. Calls shorter
/// than a millisecond are repeated in each turn, after an untimed call that reloads the caches.
///
/// @param each_round  called before each round with (round, rounds), outside of every timed span.
/// @returns the time of one call, for each of `calls`.
template <class EachRound>
std::vector<Timing> interleaved(const std::vector<std::function<void()>>& calls, const Budget& budget,
                                const EachRound& each_round) {
  constexpr double kShortest = 1e-3;  // hides the overhead of clocks and loop, about 500 ns
  constexpr double kMaxRounds = 300;  // more rounds do not improve a median

  std::vector<int> repeats;
  double fastest = budget.seconds;
  for (const auto& call : calls) {
    call();
    const double once = std::max(seconds(call), 1e-7);
    repeats.push_back(static_cast<int>(std::ceil(std::min(kShortest / once, 1e4))));
    fastest = std::min(fastest, once * repeats.back());
  }
  const int rounds = std::max(budget.rounds, static_cast<int>(std::min(budget.seconds / fastest, kMaxRounds)));

  std::vector<std::vector<double>> walls(calls.size()), cpus(calls.size());
  for (int round = 0; round < rounds; ++round) {
    each_round(round, rounds);
    for (std::size_t c = 0; c < calls.size(); ++c) {
      if (repeats[c] > 1) calls[c]();
      const std::clock_t cpu = std::clock();
      walls[c].push_back(seconds([&] {
                           for (int r = 0; r < repeats[c]; ++r) calls[c]();
                         }) /
                         repeats[c]);
      cpus[c].push_back(static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / repeats[c]);
    }
  }
  std::vector<Timing> timings;
  for (std::size_t c = 0; c < calls.size(); ++c)
    timings.push_back({median(std::move(walls[c])), median(std::move(cpus[c])), std::int64_t{rounds} * repeats[c]});
  return timings;
}

}  // namespace bench
