// key_lengths(): padding at the end of each batch element's keys.
#pragma once

#include <utility>

#include "attn/detail/mods/lengths.h"
#include "attn/mod.h"

namespace attn {

/// Keeps keys 0 .. lengths[batch] - 1; the keys behind them are padding. There is one length per batch element; it may
/// be 0.
///
///     lengths {3}:  1 1 1 0 0
///                   1 1 1 0 0
///
/// @throws std::invalid_argument in the call, if there is not one length per batch element or a length is outside
/// 0..kv_len. With a kv_offset, kv_len is not the number of all keys, and only negative lengths are refused.
inline auto key_lengths(Indices lengths) {
  return bind_mod([lengths = std::move(lengths.values)](const Problem& problem) {
    detail::check_key_lengths(lengths, problem, "key_lengths");
    const Index* length = lengths.data();
    return mask_mod([length](const Position& p) { return p.kv < length[p.batch]; },
                    [length](const Tile& t) {
                      if (t.kv.begin >= length[t.batch]) return Coverage::none;
                      return t.kv.end <= length[t.batch] ? Coverage::all : Coverage::some;
                    },
                    [length](const Tile& t) {
                      return Range{t.kv.begin, length[t.batch]};
                    });
  });
}

}  // namespace attn
