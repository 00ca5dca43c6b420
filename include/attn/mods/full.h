// full(): the mask that keeps every pair.
#pragma once

#include "attn/mod.h"

namespace attn {

/// Keeps every pair, as plain attention does. It is the identity of `|`.
///
///     1 1 1
///     1 1 1
inline auto full() {
  return mask_mod([](const Position&) { return true; }, [](const Tile&) { return Coverage::all; });
}

}  // namespace attn
