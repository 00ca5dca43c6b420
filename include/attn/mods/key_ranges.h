// key_ranges(): padding at both ends of each batch element's keys.
#pragma once

#include <utility>

#include "attn/core/mods/hints.h"
#include "attn/core/mods/lengths.h"

namespace attn {

/// Keeps keys begin[batch] .. end[batch] - 1; the keys before and after them are padding. There is one range per batch
/// element; it may be empty. Over a cache that grows, ends grow with it: make the mod anew for each step.
///
///     begin {1}, end {4}:  0 1 1 1 0
///                          0 1 1 1 0
///
/// @throws std::invalid_argument from the attention call, unless there is one range per batch element and 0 <= begin <=
/// end <= kv_len. With a kv_offset, kv_len does not count all keys, so only negative ends and beginnings are rejected.
inline auto key_ranges(Indices begin, Indices end) {
  return bind_mod([begin = std::move(begin.values), end = std::move(end.values)](const Problem& problem) {
    detail::check_key_lengths(end, problem, "key_ranges: end");
    detail::check_key_lengths(begin, problem, "key_ranges: begin");
    for (std::size_t b = 0; b < begin.size(); ++b)
      detail::require(begin[b] <= end[b], "key_ranges: begin[", b, "] = ", begin[b], " exceeds end[", b,
                      "] = ", end[b]);
    return detail::keep_ranges([begin = begin.data(), end = end.data()](const Position& p) {
      return Range{begin[p.batch], end[p.batch]};
    });
  });
}

}  // namespace attn
