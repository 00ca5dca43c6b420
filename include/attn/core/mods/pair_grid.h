// The positions of a tile's pairs in the call, and the pairs that dropout drops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attn/core/base/random.h"
#include "attn/mod.h"

namespace attn::detail {

/// The positions of a tile's pairs. Neighbouring queries are q_step apart and neighbouring keys kv_step, unless their
/// positions are listed.
struct PairGrid {
  Position first;
  Index q_step = 1, kv_step = 1;
  const Index* q_list = nullptr;  ///< positions of `queries` queries; null if they are q_step apart
  Index queries = 0;
  const Index* kv_list = nullptr;  ///< positions of keys, minus `kv_offset`; null if they are kv_step apart
  Index kv_offset = 0;

  /// Returns the position of query or key i of the tile. Tiles are whole vectors wide, so query i may not exist.
  constexpr Index q(Index i) const {
    return q_list != nullptr ? q_list[std::min(i, queries - 1)] : first.q + i * q_step;
  }
  constexpr Index kv(Index i) const { return kv_list != nullptr ? kv_list[i] + kv_offset : first.kv + i * kv_step; }
  constexpr bool has_neighbouring_keys() const { return kv_list == nullptr && kv_step == 1; }
};

/// The pairs that dropout drops. Each pair has a random word, number kv % 4 of the four that Threefry makes from the
/// counter (kv / 4, q) with the key (seed, batch, head). Quotients of negative positions are rounded down.
class DroppedPairs {
 public:
  explicit DroppedPairs(const DropoutMod& mod)
      : seed_(mod.seed), first_batch_(mod.first_batch), dropped_words_(std::llround(std::ldexp(mod.rate, 32))) {}

  /// Whether no pair is dropped. A rate below 2^-24 drops none: as a float, 1 / (1 - rate) would be 1.
  bool none() const { return dropped_words_ < 256; }
  /// Returns the largest word of a dropped pair; pairs with larger words are kept. Requires !none().
  std::uint32_t largest_dropped() const { return static_cast<std::uint32_t>(dropped_words_ - 1); }

  template <class Words>
  [[gnu::always_inline]] Threefry<Words> generator(const Position& p) const {
    const std::uint32_t key[] = {lower(seed_), upper(seed_), static_cast<std::uint32_t>(first_batch_ + p.batch),
                                 static_cast<std::uint32_t>(p.head)};
    return Threefry<Words>(key);
  }

  bool keeps(const Position& p) const {
    const std::uint64_t q = static_cast<std::uint64_t>(p.q), four = counter(p.kv);
    std::uint32_t words[] = {lower(four), upper(four), lower(q), upper(q)};
    generator<std::uint32_t>(p)(words[0], words[1], words[2], words[3]);
    return none() || words[p.kv & 3] > largest_dropped();
  }

  static constexpr std::uint64_t counter(Index kv) { return static_cast<std::uint64_t>(kv >> 2); }
  static constexpr std::uint32_t lower(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static constexpr std::uint32_t upper(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

 private:
  std::uint64_t seed_;
  Index first_batch_;
  std::int64_t dropped_words_;  ///< number of words, out of 2^32, for which a pair is dropped
};

/// Returns the factor of the weights that dropout keeps: 1 / (1 - rate), or 0 if the rate is 1.
inline long double kept_factor_of(const DropoutMod& mod) {
  if (DroppedPairs(mod).none()) return 1;
  const long double kept = 1 - static_cast<long double>(mod.rate);
  return kept == 0 ? 0 : 1 / kept;
}

}  // namespace attn::detail
