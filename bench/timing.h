// Fair timing on a machine that is never quite steady: contestants take turns, medians are compared.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

namespace bench {

/// Seconds that `call` takes, by the clock on the wall.
template <class F>
double seconds(F&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The middle value; of an even number of values the mean of the two in the middle. NaN of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// How long to time: each contestant at least this long and this often.
struct Budget {
  double seconds = 0.3;
  int rounds = 5;
};

/// Times `calls` in turn, A B C A B C …, so that drift of the machine's speed meets all of them alike.
///
/// @param each_round  called before each round with (round, rounds), outside of every timed span.
/// @returns the median seconds of one call, for each.
template <class EachRound>
std::vector<double> interleaved(const std::vector<std::function<void()>>& calls, const Budget& budget,
                                const EachRound& each_round) {
  constexpr double kShortest = 1e-3;  // a span this long hides the clock's and the loop's own cost, some 50 ns
  constexpr double kMaxRounds = 300;  // a median gets no better from here on

  std::vector<int> repeats;
  double fastest = budget.seconds;
  for (const auto& call : calls) {
    call();
    const double once = std::max(seconds(call), 1e-7);
    repeats.push_back(static_cast<int>(std::ceil(std::min(kShortest / once, 1e4))));
    fastest = std::min(fastest, once * repeats.back());
  }
  const int rounds = std::max(budget.rounds, static_cast<int>(std::min(budget.seconds / fastest, kMaxRounds)));

  std::vector<std::vector<double>> samples(calls.size());
  for (int round = 0; round < rounds; ++round) {
    each_round(round, rounds);
    for (std::size_t c = 0; c < calls.size(); ++c)
      samples[c].push_back(seconds([&] {
                             for (int r = 0; r < repeats[c]; ++r) calls[c]();
                           }) /
                           repeats[c]);
  }
  std::vector<double> medians;
  for (auto& s : samples) medians.push_back(median(std::move(s)));
  return medians;
}

}  // namespace bench
