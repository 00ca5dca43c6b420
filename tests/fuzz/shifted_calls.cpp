// Random calls whose rows of scores share large constants, or whose keys have a common part. The weights do not depend
// on either, and no way to them may: each is judged by what the definition errs by on the same numbers.
#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "shifted_scalars.h"

namespace fuzz::shifted {
namespace {

struct Settings {
  std::uint64_t seed = 1, first = 0, calls = 1000;
  double seconds = 1e9;
  std::optional<std::uint64_t> only;
  std::string scalars, isa;
  bool verbose = false;
};

/// A line for each kind of result, those that missed with their first call.
void print(const Sums& sums) {
  std::cout.precision(2);
  std::cout << "results of each kind, and the largest share of the allowed error that was used\n";
  for (const auto& [kind, sum] : sums)
    if (sum.missed == 0) std::cout << "  ok    " << kind << ": " << sum.judged << ", " << sum.share << '\n';
  for (const auto& [kind, sum] : sums)
    if (sum.missed > 0)
      std::cout << "  MISS  " << kind << ": " << sum.missed << " of " << sum.judged << ", up to " << sum.share << "; "
                << sum.first << '\n';
}

int run(const Settings& s, const Setup& setup) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::cout << "seed " << s.seed << std::endl;
  Sums sums;
  std::uint64_t done = 0, failures = 0;
  Index calls = 0;
  for (std::uint64_t n = s.only.value_or(s.first); done < s.calls && seconds() < s.seconds; ++n) {
    Case c(setup, n);
    const Scalars& scalars = drawn_scalars(c.random);
    if (!s.scalars.empty() && s.scalars != scalars.name && !s.only) continue;
    Report report{sums, scalars.name, "0", n};
    try {
      scalars.run(c, report);
    } catch (const std::exception& e) {
      Sum& sum = sums[std::string("an exception, ") + e.what()];
      ++sum.judged, ++sum.missed, ++report.missed;
      if (sum.first.empty()) sum.first = "--case " + std::to_string(n) + ':' + c.text.str();
    }
    ++done, calls += c.calls, failures += report.missed > 0;
    if (s.verbose) std::cout << (report.missed > 0 ? "MISS " : "ok ") << n << c.text.str() << std::endl;
    if (s.only) break;
  }
  print(sums);
  std::cout << done << " cases, " << calls << " calls, " << failures << " failures, " << static_cast<int>(seconds())
            << " s" << std::endl;
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz::shifted

int main(int argc, char** argv) {
  fuzz::shifted::Settings s;
  CLI::App app("Random calls of attn with large constants in their scores, each compared with the definition.");
  app.add_option("--seed", s.seed, "all cases follow from it")->capture_default_str();
  app.add_option("--first", s.first, "number of the first case")->capture_default_str();
  app.add_option("--calls", s.calls, "how many cases")->capture_default_str();
  app.add_option("--seconds", s.seconds, "stop after so long");
  app.add_option("--case", s.only, "this case alone");
  app.add_option("--scalars", s.scalars, "cases of these alone: float, double, half, bf16 or mixed");
  app.add_option("--isa", s.isa, "an instruction set instead of a random one, as fuzz_calls takes it");
  app.add_flag("--verbose", s.verbose, "a line for each case");
  CLI11_PARSE(app, argc, argv);
  fuzz::Setup setup{s.seed, std::nullopt, false};
  for (attn::Isa isa : attn::kIsas)
    if (attn::to_string(isa) == s.isa && attn::available(isa)) setup.isa = isa;
  if (!s.isa.empty() && !setup.isa) {
    std::cout << "Skipped: the instruction set " << s.isa << " is not available here.\n";
    return 77;
  }
  return fuzz::shifted::run(s, setup);
}
