// Options of calls that change a cache.
#pragma once

#include "attn/core/base/names_only.h"
#include "attn/lists.h"

namespace attn {

/// Options of append(): `cache.append(k, v, {.positions = {20, 21, 21}})`.
struct AppendOptions {
  detail::NamesOnly names_only{};  ///< Rejects unnamed numbers, which may be meant as lengths. It has no other use.

  /// The positions by which the cache's rope rotates the new keys, and later the queries of these rows: one for each
  /// token of all sequences, in order; or one for each token of a single sequence, and then all sequences get the same
  /// positions. Positions may repeat, decrease, or be negative. By default a token is one position after the row before
  /// it, and row 0 is at position 0. Mods see row numbers instead, as always. Memory: 8 bytes per row, from the first
  /// row whose position differs from its row number.
  ///
  /// With the rope of a RopeAxes, a token has a position on each axis, and the list has all positions on axis 0, then
  /// those on axis 1, and so on, (axes, tokens) or (axes, sequences, tokens) as in RopeAxes::rotate(). One position for
  /// each token, of a single sequence or of packed ones, applies to all axes; for several sequences with the same
  /// number of tokens, repeat their positions for each axis. By default a token is on all axes one position after the
  /// largest of the row before it, like text after an image. Memory: 8 bytes per row and axis.
  Indices positions = {};
};

/// Options of drop() and retain().
struct DropOptions {
  /// Whether the remaining keys keep the positions by which the cache's rope has rotated them, as in SnapKV (Li et al.
  /// 2024). By default the gaps close, and later keys are rotated to their new positions. Without a rope, this option
  /// has no effect.
  bool keep_positions = false;
};

}  // namespace attn
