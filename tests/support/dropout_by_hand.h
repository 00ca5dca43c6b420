// A reference implementation of dropout's random words, in loops over the rounds. It shares no code with the library.
#pragma once

#include <array>
#include <cstdint>

namespace attn::test {

using FourWords = std::array<std::uint32_t, 4>;

/// Threefry-4x32 of Salmon et al. 2011 with any number of rounds.
FourWords threefry_by_hand(FourWords x, const FourWords& key, int rounds);

/// The random word of a pair; dropout(p, seed) drops the pair if the word is below p * 2^32.
std::uint32_t dropout_word(std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q, std::int64_t kv);

/// The factor that dropout(p, seed) applies to a weight.
long double dropout_factor(double p, std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q,
                           std::int64_t kv);

}  // namespace attn::test
