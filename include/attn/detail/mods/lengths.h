// Lengths as several mods take them, one for each batch element.
#pragma once

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

}  // namespace attn::detail
