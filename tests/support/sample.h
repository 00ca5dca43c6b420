// Lets sweeps run all their cases, or a sample chosen by the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>

namespace attn::test {

/// With ATTN_TEST_EVERY=n a sweep runs one case in n, at random; ATTN_TEST_SEED selects the sample.
class Sample {
 public:
  /// Whether to run the next case. The n-th call gives the same answer in every run with the same environment.
  bool takes_next() { return every_ <= 1 || random_() % every_ == 0; }

  /// Environment variables that reproduce the sample.
  std::string text() const {
    std::ostringstream text;
    if (every_ > 1) text << ", ATTN_TEST_EVERY=" << every_ << " ATTN_TEST_SEED=" << seed_;
    return text.str();
  }

 private:
  static std::uint64_t number(const char* name) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : 1;
  }

  std::uint64_t every_ = number("ATTN_TEST_EVERY"), seed_ = number("ATTN_TEST_SEED");
  std::mt19937_64 random_{seed_};
};

}  // namespace attn::test
