// Checks of lengths and key counts that several mods share.
#pragma once

#include <limits>
#include <span>

#include "attn/core/base/check.h"
#include "attn/lists.h"
#include "attn/types.h"

namespace attn::detail {

/// @throws std::invalid_argument unless there is one length per batch element, each in 0..most.
inline void check_lengths(std::span<const Index> lengths, const Problem& problem, Index most, const char* name,
                          const char* name_of_most) {
  require(static_cast<Index>(lengths.size()) == problem.batch, name, " has ", lengths.size(),
          " lengths for a batch of ", problem.batch, "; give one per batch element");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (problem.sequence && static_cast<Index>(b) != *problem.sequence) continue;
    require(lengths[b] >= 0 && lengths[b] <= most, name, "[", b, "] must be in 0..", most, " (", name_of_most,
            "), but is ", lengths[b]);
  }
}

/// check_lengths() for key lengths. If the call has only part of the keys, their total number is unknown.
inline void check_key_lengths(std::span<const Index> lengths, const Problem& problem, const char* name) {
  if (!problem.has_part_of_keys) return check_lengths(lengths, problem, problem.kv_len, name, "kv_len");
  check_lengths(lengths, problem, std::numeric_limits<Index>::max(), name, "no limit with a kv_offset");
}

/// Whether a mod with data for `held` keys, from position 0 on, fits the call. If the call has only part of the keys,
/// the mod may have data for more.
inline bool fits_keys(Index held, const Problem& problem) {
  if (!problem.has_part_of_keys) return held == problem.kv_len;
  return problem.kv_len == 0 || (problem.kv_offset >= 0 && held >= problem.keys().end);
}
/// For error messages: the note after the number of keys, problem.keys().end. Empty unless the call has only part of
/// the keys.
inline const char* note_of_part(const Problem& problem) {
  return !problem.has_part_of_keys ? ""
         : problem.kv_offset < 0   ? "; positions start at 0, but kv_offset is negative"
                                   : "; with a kv_offset, all keys from position 0 on must be covered";
}

/// @throws std::invalid_argument unless all queries of the call have positions in 0..count - 1.
inline void check_positions(Index count, const Problem& problem, const char* name, const char* what_covers) {
  require(problem.q_len == 0 || (problem.q_offset >= 0 && problem.q_len <= count - problem.q_offset), name,
          ": queries have positions ", problem.q_offset, "..", problem.q_offset + problem.q_len - 1, ", but the ",
          what_covers, " 0..", count - 1);
}

}  // namespace attn::detail
