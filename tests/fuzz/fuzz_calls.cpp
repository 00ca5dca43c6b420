// Random calls to all parts of the library, each judged by a separate oracle, with every tensor next to guard pages.
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "families.h"
#include "shifted_judge.h"

namespace fuzz {
namespace {

struct Settings {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t calls = 1000;
  double seconds = 1e9;
  std::uint64_t failures = 25;
  std::optional<std::uint64_t> only;
  std::string family, isa, plant;
  bool verbose = false;
};

/// Exit codes besides 0 (nothing found) and 1 (failures).
constexpr int kTouched = 2, kSkipped = 77;

/// The command that replays the current case, for a signal handler, which must not allocate.
char replay[256];

void say_and_end(int signal) {
  const auto say = [](const char* text) { return write(STDERR_FILENO, text, std::char_traits<char>::length(text)); };
  if (say(signal == SIGSEGV || signal == SIGBUS ? "\nFAILED by touching forbidden memory: "
                                                : "\nFAILED by a signal: ") < 0 ||
      say(replay) < 0 || say("\n") < 0)
    _exit(1);
  _exit(kTouched);
}

const Family& family_of(Random& r) {
  Index sum = 0;
  for (const Family& f : kFamilies) sum += f.share;
  Index at = r.from(0, sum - 1);
  for (const Family& f : kFamilies)
    if ((at -= f.share) < 0) return f;
  return kFamilies[0];
}

/// The results of a family's cases.
struct FamilyResults {
  std::uint64_t cases = 0;
  Shares shares;
};

/// The part of a result's name after a comma is printed only if `verbose`.
void print(const std::map<std::string, FamilyResults>& families, bool verbose) {
  std::cout << "cases per family, and the largest error as a fraction of the allowed one\n";
  std::cout.precision(2);
  for (const auto& [name, results] : families) {
    std::cout << "  " << name << ' ' << results.cases;
    Shares shares;
    for (const auto& [what, share] : results.shares) {
      double& most = shares[verbose ? what : what.substr(0, what.find(','))];
      most = std::max(most, share);
    }
    for (const auto& [what, share] : shares) std::cout << (verbose ? "\n    " : ", ") << what << ' ' << share;
    std::cout << '\n';
  }
}

/// Reads the byte after a tensor, as a faulty kernel would.
int touch() {
  const Guarded memory(100, true, 0);
  const volatile std::byte* const behind = memory.data() + 100;
  return static_cast<int>(*behind);
}

int run(const Settings& s, const Setup& setup) {
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, say_and_end);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::cout << "seed " << s.seed << std::endl;
  std::map<std::string, FamilyResults> families;
  std::uint64_t done = 0, failures = 0;
  Index calls = 0;
  double over_naive = 0;
  for (std::uint64_t n = s.only.value_or(s.first); done < s.calls && failures < s.failures && seconds() < s.seconds;
       ++n) {
    Case c(setup, n);
    const Family& family = family_of(c.random);
    std::snprintf(replay, sizeof(replay), "fuzz_calls --seed %llu --case %llu%s%s --verbose  (%s)",
                  static_cast<unsigned long long>(s.seed), static_cast<unsigned long long>(n),
                  s.isa.empty() ? "" : " --isa ", s.isa.c_str(), family.name);
    if (std::string(family.name).rfind(s.family, 0) != 0 && !s.only) continue;
    std::string why;
    try {
      if (s.plant == "fence") return touch();
      family.run(c);
    } catch (const std::exception& e) {
      why = e.what();
    }
    FamilyResults& results = families[family.name];
    ++done, ++results.cases, calls += c.calls;
    for (const auto& [what, share] : c.shares) {
      double& most = what == shifted::kOverNaive ? over_naive : results.shares[what];
      most = std::max(most, share);
    }
    if (s.verbose) std::cout << "case " << n << ' ' << family.name << ':' << c.text.str() << std::endl;
    if (!why.empty()) {
      ++failures;
      std::cout << "FAILED: " << why << "\n  " << replay << "\n  " << c.text.str() << std::endl;
    }
    if (s.only) break;
  }
  print(families, s.verbose);
  if (over_naive > 0) std::cout << "worst error over naive's: " << over_naive << '\n';
  std::cout << done << " cases, " << calls << " calls, " << failures << " failures, " << static_cast<int>(seconds())
            << " s" << std::endl;
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) {
  fuzz::Settings s;
  CLI::App app("Random calls to attn, each compared with a slow oracle, with guard pages around all tensors.");
  app.add_option("--seed", s.seed, "determines all cases")->capture_default_str();
  app.add_option("--first", s.first, "number of the first case")->capture_default_str();
  app.add_option("--calls", s.calls, "number of cases")->capture_default_str();
  app.add_option("--seconds", s.seconds, "stop after this many seconds");
  app.add_option("--case", s.only, "run only this case");
  app.add_option("--family", s.family, "run only families whose names begin with this");
  app.add_option("--failures", s.failures, "stop after this many failures")->capture_default_str();
  app.add_option("--isa", s.isa,
                 "generic, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx instead of a random one");
  app.add_option("--plant", s.plant,
                 "a fault that must be found: oracle (a scale 1 % off) or fence (a read past the end of a tensor)")
      ->check(CLI::IsMember({"oracle", "fence"}));
  app.add_flag("--verbose", s.verbose, "print a line per case");
  CLI11_PARSE(app, argc, argv);
  fuzz::Setup setup{s.seed, std::nullopt, s.plant == "oracle"};
  for (attn::Isa isa : attn::kIsas)
    if (attn::to_string(isa) == s.isa && attn::available(isa)) setup.isa = isa;
  if (!s.isa.empty() && !setup.isa) {
    std::cout << "Skipped: the instruction set " << s.isa << " is not available here.\n";
    return fuzz::kSkipped;
  }
  return fuzz::run(s, setup);
}
