// A sample of the random calls for each commit: every mod with its own type, in guarded memory with random strides.
#include <gtest/gtest.h>

#include <cstdlib>

#include "families.h"

namespace fuzz {
namespace {

/// The failures among this many cases.
std::vector<std::string> failures_of(std::uint64_t cases, bool wrong_oracle) {
  const char* const seed = std::getenv("ATTN_TEST_SEED");
  const Setup setup{seed ? std::strtoull(seed, nullptr, 0) : 1, std::nullopt, wrong_oracle};
  std::vector<std::string> failures;
  for (std::uint64_t n = 0; n < cases; ++n) {
    Case c(setup, n);
    try {
      named_mods(c);
    } catch (const std::exception& e) {
      failures.push_back(std::string(e.what()) + "\n case " + std::to_string(n) + " of seed " +
                         std::to_string(setup.seed) + ':' + c.text.str());
    }
  }
  return failures;
}

TEST(RandomCalls, EveryModMatchesTheOracle) {
  for (const std::string& failure : failures_of(300, false)) ADD_FAILURE() << failure;
}

TEST(RandomCalls, DetectAWrongOracle) { EXPECT_GT(failures_of(60, true).size(), 10u); }

}  // namespace
}  // namespace fuzz
