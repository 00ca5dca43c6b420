// Tiles of keys and values as the kernels for tiles of queries read them.
#pragma once

#include <algorithm>

#include "attn/detail/flash/pass.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How the keys of a pass are cut into tiles, and how a tile comes to where kernels read it: kernels read it in the
/// caller's memory if they can, otherwise it is packed.
template <class T>
class PrefillTiles {
 public:
  /// How many tiles of keys are packed at a time: a tile of queries meets them all before the next takes its place in
  /// L1. With two the matrix unit is 5 % slower, and also with eight, which drive the weights out of L1.
  static constexpr Index kChunk = 4;

  /// A tile of keys and values.
  struct Tile {
    Range keys;
    Index first;  ///< row in the memory of a chunk, where each tile has room for a multiple of what kernels read
    bool loaded;  ///< whether the rows are known
    Rows<T> key, value;
  };

  explicit PrefillTiles(const PassContext<T>& pass)
      : tensors_(pass.tensors),
        problem_(pass.problem()),
        format_(pass.kernels.family.format),
        aligned_(packs() || tensors_.k.is_paged() || tensors_.k.is_gathered()) {}

  bool packs_keys() const { return packs(format_, tensors_.k); }
  bool packs_values() const { return packs(format_, tensors_.v) || format_.arranges_values; }
  bool packs() const { return packs_keys() || packs_values(); }
  Index chunk() const { return packs() ? kChunk : 1; }

  /// Calls visit(keys) for each tile of a range. Where keys are packed, tiles begin at multiples of their length,
  /// because results must not depend on how many tiles of queries a block has. Kernels for bf16
  /// always get whole tiles: they add up 32 keys, or pairs of them, before they round, and scale masked tiles in a
  /// separate step.
  template <class Visit>
  void for_each(Range all, const Visit& visit) const {
    if (format_.keys > 1 && !all.empty())
      all = {all.begin / kKeyTile * kKeyTile, std::min(padded(all.end, kKeyTile), problem_.kv_len)};
    for (Index j = all.begin, end; j < all.end; j = end) {
      end = std::min((aligned_ ? j / kKeyTile * kKeyTile : j) + kKeyTile, all.end);
      visit(Range{j, end});
    }
  }

  /// The keys of a tile that queries visiting `visited` work on.
  static Range shown(const KernelFamily<T>& family, const Range& keys, const Range& visited) {
    return family.format.keys > 1 ? keys : intersect(keys, visited);
  }

  /// The tile cut down to `keys`. Keys that only another tile of queries visits must not affect this one, not even if
  /// they are NaN.
  static Tile part_of(const Tile& tile, const Range& keys) {
    Tile part = tile;
    part.keys = keys;
    if (keys == tile.keys) return part;
    part.key.data += (keys.begin - tile.keys.begin) * part.key.stride;
    part.value.data += (keys.begin - tile.keys.begin) * part.value.stride;
    return part;
  }

  /// Brings a tile to where the kernels of `family` read it, for queries with the memory `m`.
  void load(const KernelFamily<T>& family, const QueryTile& queries, const TileMemory<T>& m, Tile& tile) const {
    const Format& format = family.format;
    const Index batch = queries.batch, kv_head = problem_.kv_head(queries.head), count = tile.keys.size();
    tile.key = kv_rows_of(family, tensors_.k, batch, kv_head, tile.keys, format.keys,
                          m.packed_key + tile.first * format.row(problem_.head_dim));
    tile.value = kv_rows_of(family, tensors_.v, batch, kv_head, tile.keys, 1,
                            m.packed_value + tile.first * format.row(problem_.v_dim));
    tile.value =
        family.arrange_values(tile.value, count, problem_.v_dim, m.arranged + tile.first * format.row(problem_.v_dim));
    tile.loaded = true;
  }

  /// How a worker's memory is laid out for `tiles` tiles of up to `queries` queries.
  TileLayout<T> layout(const KernelFamily<T>& family, Index queries, Index tiles) const {
    const Format& format = family.format;
    const Index row = format.row(problem_.head_dim), value_row = format.row(problem_.v_dim);
    const bool has_queries =
        copies_queries(format, tensors_.q) || tensors_.rotation || tensors_.q_list.exists();  // in the place of keys
    const bool packs_keys = packs(format, tensors_.k) || format.keys > 1 || has_queries;
    const Index whole = chunk() * kKeyTile, keys = std::min(whole, padded(problem_.kv_len, format.keys));
    return TileLayout<T>({.queries = queries,
                          .query = row,
                          .out = padded(problem_.v_dim, format.out),
                          .packed_key = packs_keys ? row : 0,
                          .packed_value = packs(format, tensors_.v) ? value_row : 0,
                          .arranged = format.arranges_values ? value_row : 0,
                          .weights = format.defers_value_product ? queries / format.per_number() : 0,
                          .chunk = has_queries ? whole : keys,
                          .totals = has_totals(problem_.kv_len)},
                         tiles);
  }

 private:
  static bool packs(const Format& format, const KvRows<T>& t) {
    return !in_place(format, t) || t.cuts_tiles_of(kKeyTile);
  }

  const CallTensors<T>& tensors_;
  const Problem& problem_;
  const Format& format_;
  bool aligned_;  ///< whether tiles of keys begin at multiples of their length
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
