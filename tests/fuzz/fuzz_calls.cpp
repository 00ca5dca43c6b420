// Random calls of the whole library, each judged by an oracle of its own, with every tensor against forbidden pages.
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

/// Exit codes beside 0 and 1, which say whether anything was found.
constexpr int kTouched = 2, kSkipped = 77;

/// What replays the case that runs, for a signal handler that may not do much.
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

/// What a family's cases found.
struct Sums {
  std::uint64_t cases = 0;
  Shares shares;
};

/// What follows a comma in the name of a result is for `verbose`.
void print(const std::map<std::string, Sums>& families, bool verbose) {
  std::cout << "cases of each family, and the largest share of the allowed error that was used\n";
  std::cout.precision(2);
  for (const auto& [name, sums] : families) {
    std::cout << "  " << name << ' ' << sums.cases;
    Shares shares;
    for (const auto& [what, share] : sums.shares) {
      double& most = shares[verbose ? what : what.substr(0, what.find(','))];
      most = std::max(most, share);
    }
    for (const auto& [what, share] : shares) std::cout << (verbose ? "\n    " : ", ") << what << ' ' << share;
    std::cout << '\n';
  }
}

/// Reads the byte behind a tensor, as a faulty kernel would.
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
  std::map<std::string, Sums> families;
  std::uint64_t done = 0, failures = 0;
  Index calls = 0;
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
    Sums& sums = families[family.name];
    ++done, ++sums.cases, calls += c.calls;
    for (const auto& [what, share] : c.shares) sums.shares[what] = std::max(sums.shares[what], share);
    if (s.verbose) std::cout << "case " << n << ' ' << family.name << ':' << c.text.str() << std::endl;
    if (!why.empty()) {
      ++failures;
      std::cout << "FAILED: " << why << "\n  " << replay << "\n  " << c.text.str() << std::endl;
    }
    if (s.only) break;
  }
  print(families, s.verbose);
  std::cout << done << " cases, " << calls << " calls, " << failures << " failures, " << static_cast<int>(seconds())
            << " s" << std::endl;
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) {
  fuzz::Settings s;
  CLI::App app("Random calls of attn, each compared with a slow oracle, under guard pages.");
  app.add_option("--seed", s.seed, "all cases follow from it")->capture_default_str();
  app.add_option("--first", s.first, "number of the first case")->capture_default_str();
  app.add_option("--calls", s.calls, "how many cases")->capture_default_str();
  app.add_option("--seconds", s.seconds, "stop after so long");
  app.add_option("--case", s.only, "this case alone");
  app.add_option("--family", s.family, "cases of this family alone, or of those whose names begin with it");
  app.add_option("--failures", s.failures, "stop after so many")->capture_default_str();
  app.add_option("--isa", s.isa,
                 "generic, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx instead of a random one");
  app.add_option("--plant", s.plant,
                 "a fault that must be found: oracle (a scale 1 % off) or fence (a byte read behind a tensor)")
      ->check(CLI::IsMember({"oracle", "fence"}));
  app.add_flag("--verbose", s.verbose, "a line for each case");
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
