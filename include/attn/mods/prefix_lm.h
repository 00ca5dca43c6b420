// prefix_lm(): causal, except for a prefix that every query sees.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/core/mods/hints.h"
#include "attn/core/mods/lengths.h"

namespace attn {

/// Keeps the prefix, keys 0 .. lengths[batch] - 1, for every query, and the other keys at or before the query (Raffel
/// et al. 2020, section 3.2.1). There is one length per batch element; it may be 0.
///
///     lengths {2}:  1 1 0 0
///                   1 1 0 0
///                   1 1 1 0
///                   1 1 1 1
///
/// @throws std::invalid_argument from the attention call, unless there is one length per batch element, each in
/// 0..kv_len. With a kv_offset, kv_len does not count all keys, so only negative lengths are rejected.
inline auto prefix_lm(Indices lengths) {
  return bind_mod([lengths = std::move(lengths.values)](const Problem& problem) {
    detail::check_key_lengths(lengths, problem, "prefix_lm");
    return detail::keep_ranges([length = lengths.data()](const Position& p) {
      return Range{detail::kFirstKey, std::max(length[p.batch], p.q + 1)};
    });
  });
}

}  // namespace attn
