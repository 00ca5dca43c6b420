// Lengths as several mods take them, one for each batch element.
#pragma once

#include <limits>
#include <vector>

#include "attn/detail/base/check.h"
#include "attn/lists.h"
#include "attn/types.h"

namespace attn::detail {

/// @throws std::invalid_argument unless there is one length per batch element, each in 0..most.
inline void check_lengths(const std::vector<Index>& lengths, const Problem& problem, Index most, const char* name,
                          const char* name_of_most) {
  require(static_cast<Index>(lengths.size()) == problem.batch, name, " has ", lengths.size(),
          " lengths for a batch of ", problem.batch, "; give one for each batch element");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (problem.sequence && static_cast<Index>(b) != *problem.sequence) continue;
    require(lengths[b] >= 0 && lengths[b] <= most, name, "[", b, "] = ", lengths[b], " is outside 0..", most, " (",
            name_of_most, ")");
  }
}

/// The same for lengths of keys. Where these are a part of more, nobody says of how many.
inline void check_key_lengths(const std::vector<Index>& lengths, const Problem& problem, const char* name) {
  if (!problem.has_part_of_keys) return check_lengths(lengths, problem, problem.kv_len, name, "kv_len");
  check_lengths(lengths, problem, std::numeric_limits<Index>::max(), name, "any number of keys, with a kv_offset");
}

/// Does what a mod holds of so many keys, from position 0 on, fit the call? Where its keys are a part of more, that may
/// be of more, too.
inline bool fits_keys(Index held, const Problem& problem) {
  if (!problem.has_part_of_keys) return held == problem.kv_len;
  return problem.kv_len == 0 || (problem.kv_offset >= 0 && held >= problem.keys().end);
}
/// What a message adds where it does not, behind the number of keys, problem.keys().end.
inline const char* note_of_part(const Problem& problem) {
  return !problem.has_part_of_keys ? ""
         : problem.kv_offset < 0   ? "; they count from 0, and kv_offset is negative"
                                   : "; with a kv_offset they are those of all keys, as many as these or more";
}

}  // namespace attn::detail
