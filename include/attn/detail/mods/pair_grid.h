// Where the pairs of a tile lie in the call, and which of them dropout drops.
#pragma once

#include <cmath>
#include <cstdint>

#include "attn/detail/base/threefry.h"
#include "attn/mod.h"

namespace attn::detail {
/// The positions of a tile's pairs: neighbouring queries are q_step apart, and keys kv_step.
struct PairGrid {
  Position first;
  Index q_step = 1, kv_step = 1;
};

/// Which pairs a dropout drops: each has a random word, that of its key among the four that Threefry has for
/// its query and four keys, where the seed and the head are the key of Threefry.
class DroppedPairs {
 public:
  explicit DroppedPairs(const DropoutMod& mod)
      : seed_(mod.seed), dropped_words_(std::llround(std::ldexp(mod.rate, 32))) {}

  /// Rates below 2^-33 drop none.
  bool none() const { return dropped_words_ == 0; }
  /// A pair is kept if its word is larger. There must be dropped ones.
  std::uint32_t largest_dropped() const { return static_cast<std::uint32_t>(dropped_words_ - 1); }

  template <class Words>
  [[gnu::always_inline]] Threefry<Words> generator(const Position& p) const {
    const std::uint32_t key[] = {lower(seed_), upper(seed_), static_cast<std::uint32_t>(p.batch),
                                 static_cast<std::uint32_t>(p.head)};
    return Threefry<Words>(key);
  }

  bool keeps(const Position& p) const {
    const std::uint64_t q = static_cast<std::uint64_t>(p.q), four = static_cast<std::uint64_t>(p.kv) / 4;
    std::uint32_t words[] = {lower(four), upper(four), lower(q), upper(q)};
    generator<std::uint32_t>(p)(words[0], words[1], words[2], words[3]);
    return none() || words[p.kv % 4] > largest_dropped();
  }

  static constexpr std::uint32_t lower(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static constexpr std::uint32_t upper(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

 private:
  std::uint64_t seed_;
  std::int64_t dropped_words_;  ///< of 2^32
};

}  // namespace attn::detail
