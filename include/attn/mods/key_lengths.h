// key_lengths(): padding at the end of each batch element's keys.
#pragma once

#include <utility>

#include "attn/core/mods/hints.h"
#include "attn/core/mods/lengths.h"

namespace attn {

/// Keeps keys 0 .. lengths[batch] - 1; later keys are padding. There is one length per batch element; it may be 0.
///
///     lengths {3}:  1 1 1 0 0
///                   1 1 1 0 0
///
/// @throws std::invalid_argument from the attention call, unless there is one length per batch element, each in
/// 0..kv_len. With a kv_offset, kv_len does not count all keys, so only negative lengths are rejected.
inline auto key_lengths(Indices lengths) {
  return bind_mod([lengths = std::move(lengths.values)](const Problem& problem) {
    detail::check_key_lengths(lengths, problem, "key_lengths");
    return detail::keep_ranges([length = lengths.data()](const Position& p) {
      return Range{detail::kFirstKey, length[p.batch]};
    });
  });
}

}  // namespace attn
