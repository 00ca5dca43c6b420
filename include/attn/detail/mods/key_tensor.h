// What masks given as boolean tensors of keys say of a tile.
#pragma once

#include "attn/detail/mods/broadcast.h"
#include "attn/detail/mods/distances.h"

namespace attn::detail {

/// The hint of a mask that all queries have in common: padding then costs what key_lengths() does. O(keys of the tile).
struct KeyTensorHint {
  PairTensor<bool> tensor;
  bool keep_where;

  Coverage operator()(const Tile& t) const {
    if (is_wide(t.kv)) return Coverage::some;
    bool any = false, all = true;
    for (Index kv = t.kv.begin; kv < t.kv.end; ++kv) {
      const bool kept = tensor(Position{t.batch, t.head, t.q.begin, kv}) == keep_where;
      any |= kept;
      all &= kept;
    }
    return all ? Coverage::all : any ? Coverage::some : Coverage::none;
  }
};

}  // namespace attn::detail
