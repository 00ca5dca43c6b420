// Sweeps take all their cases, or a sample where the environment asks for one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>

namespace attn::test {

/// With ATTN_TEST_EVERY=n a sweep takes one case in n, at random; with another ATTN_TEST_SEED it takes others.
class Sample {
 public:
  /// Whether the next case is taken. The answers are the same in every run that asks as often.
  bool takes_next() { return every_ <= 1 || random_() % every_ == 0; }

  /// How to get the same cases again.
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
