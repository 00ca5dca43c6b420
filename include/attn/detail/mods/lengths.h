// Checks of lengths and numbers of keys that several mods share.
#pragma once

#include <limits>
#include <span>

#include "attn/detail/base/check.h"
#include "attn/lists.h"
#include "attn/types.h"

namespace attn::detail {

/// @throws std::invalid_argument unless there is one length per batch element, each in 0..most.
inline void check_lengths(std::span<const Index> lengths, const Problem& problem, Index most, const char* name,
                          const char* name_of_most) {
  require(static_cast<Index>(lengths.size()) == problem.batch, name, " has ", lengths.size(),
          " lengths for a batch of ", problem.batch, "; give one for each batch element");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (problem.sequence && static_cast<Index>(b) != *problem.sequence) continue;
    require(lengths[b] >= 0 && lengths[b] <= most, name, "[", b, "] = ", lengths[b], " is outside 0..", most, " (",
            name_of_most, ")");
  }
}

/// check_lengths() for lengths of keys. Where the call has a part of the keys, nobody says how many there are in all.
inline void check_key_lengths(std::span<const Index> lengths, const Problem& problem, const char* name) {
  if (!problem.has_part_of_keys) return check_lengths(lengths, problem, problem.kv_len, name, "kv_len");
  check_lengths(lengths, problem, std::numeric_limits<Index>::max(), name, "any number of keys, with a kv_offset");
}

/// Whether what a mod holds for `held` keys, from position 0 on, fits the call. Where the call has a part of the keys,
/// the mod may hold more.
inline bool fits_keys(Index held, const Problem& problem) {
  if (!problem.has_part_of_keys) return held == problem.kv_len;
  return problem.kv_len == 0 || (problem.kv_offset >= 0 && held >= problem.keys().end);
}
/// What a message adds to the number of keys, problem.keys().end, where the call has a part of them.
inline const char* note_of_part(const Problem& problem) {
  return !problem.has_part_of_keys ? ""
         : problem.kv_offset < 0   ? "; they count from 0, and kv_offset is negative"
                                   : "; with a kv_offset they are those of all keys, as many as these or more";
}

}  // namespace attn::detail
