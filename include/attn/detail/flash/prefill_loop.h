// The loop over tiles of keys, for tiles of queries that read the same keys.
#pragma once

#include "attn/detail/flash/prefetch_plan.h"
#include "attn/detail/flash/prefill_state.h"
#include "attn/detail/flash/query_blocks.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Works on blocks of tiles of queries. Keys and values come by chunks of tiles, are packed where they must be, and
/// meet all tiles of the block.
template <class T>
class PrefillLoop {
 public:
  /// The most tiles of queries in a block. Sixteen make packing cheap (eight cost 2 to 5 % of the speed) and keep their
  /// state in the L2 cache, 0.4 to 0.8 MiB at head_dim 128. Where nothing is packed, each tile is a block of its own,
  /// with its state in L1.
  static constexpr Index kMostTiles = 16;

  PrefillLoop(const PassContext<T>& pass, const QueryTiles<T>& tiles) : pass_(pass), tiles_(tiles), key_tiles_(pass) {}

  Index most_tiles() const { return key_tiles_.packs() ? kMostTiles : 1; }
  bool packs_keys() const { return key_tiles_.packs_keys(); }
  bool packs_values() const { return key_tiles_.packs_values(); }

  /// The memory of a worker for blocks of up to `tiles` tiles.
  Index bytes(Index tiles) const {
    const ChosenKernels<T>& kernels = pass_.kernels;
    return std::max(layout(kernels.family, tiles).bytes(), layout(kernels.full_precision, 1).bytes());
  }

  /// Computes a block. `following` are queries of the block that likely comes next.
  void run(const QueryBlocks<T>& blocks, Index block, const QueryTile& following, std::byte* memory) const {
    const KernelFamily<T>& family = pass_.kernels.family;
    Array<PrefillState<T>, kMostTiles> room;
    const std::span tiles(room, static_cast<std::size_t>(blocks.size(block)));
    const TileLayout<T> layout = this->layout(family, blocks.most_tiles());
    const InUse<T> in_use(family);
    for (Index i = 0; PrefillState<T> & tile : tiles) {
      tile = PrefillState<T>(pass_, family, blocks.at(block, i), layout.at(memory, i));
      ++i;
    }
    visit_keys(tiles, following, false);
    // Computing a tile again overwrites the memory of all tiles, so the results of the sound ones are stored first.
    Array<bool, kMostTiles> again;
    for (Index i = 0; const PrefillState<T>& tile : tiles)
      if (!(again[i++] = tile.must_compute_again())) tile.store_result();
    for (Index i = 0; const PrefillState<T>& tile : tiles)
      if (again[i++]) compute_again(tile.queries, following, memory);
  }

  /// Calls visit(tile of keys, coverage) for each tile of keys that some queries visit.
  template <class Visit>
  void for_each_key_tile(const QueryTile& queries, const Visit& visit) const {
    const Range visited = pass_.visited(queries);
    key_tiles_.for_each(visited, [&](const Range& keys) { visit(keys, pass_.coverage(queries, visited, keys)); });
  }

 private:
  using KvTile = typename PrefillTiles<T>::Tile;

  TileLayout<T> layout(const KernelFamily<T>& family, Index tiles) const {
    return key_tiles_.layout(family, tiles_.most_queries(), tiles);
  }

  /// Computes one tile of queries again, in full precision and by selection: dropped pairs are not even multiplied.
  void compute_again(const QueryTile& queries, const QueryTile& following, std::byte* memory) const {
    const KernelFamily<T>& family = pass_.kernels.full_precision;
    PrefillState<T> tile(pass_, family, queries, layout(family, 1).at(memory));
    visit_keys({&tile, 1}, following, true);
    tile.store_result();
  }

  /// Runs the recurrence over all tiles of keys: chunk by chunk, and for each chunk over the tiles of queries in turn.
  /// All tiles of queries have the same kernels.
  void visit_keys(std::span<PrefillState<T>> tiles, const QueryTile& following, bool by_selection) const {
    const Index rows_at_a_time = tiles.front().family().format.keys;
    Array<KvTile, PrefillTiles<T>::kChunk> room;
    Index count = 0, rows = 0;
    const auto visit_chunk = [&] {
      for (PrefillState<T>& tile : tiles) {
        for (KvTile& keys : std::span(room, static_cast<std::size_t>(count)))
          visit_tile(tile, keys, following, by_selection);
        tile.multiply(kNoPlan);
      }
      count = rows = 0;
    };
    key_tiles_.for_each(hull_of_visited(tiles), [&](const Range& keys) {
      room[count++] = {keys, rows, false, {}, {}};
      rows += padded(keys.size(), rows_at_a_time);
      if (count == key_tiles_.chunk()) visit_chunk();
    });
    visit_chunk();
    for (PrefillState<T>& tile : tiles) tile.finish();
  }

  void visit_tile(PrefillState<T>& tile, KvTile& keys, const QueryTile& following, bool by_selection) const {
    const KernelFamily<T>& family = tile.family();
    const Range shown = PrefillTiles<T>::shown(family, keys.keys, tile.visited);
    const Coverage coverage = pass_.coverage(tile.queries, tile.visited, shown);
    if (coverage == Coverage::none) return tile.multiply(kNoPlan);
    if (!keys.loaded) key_tiles_.load(family, tile.queries, tile.memory(), keys);
    const KvTile part = PrefillTiles<T>::part_of(keys, shown);
    if (!family.format.fetches) return tile.add_keys(part, coverage, by_selection, kNoPlan);
    tile.add_keys(part, coverage, by_selection,
                  pass_.tensors.k.is_gathered()
                      ? PrefetchPlan::nothing(tile.memory().query)
                      : plan_prefetch(pass_, tiles_.count(), tile.queries, following, shown, tile.visited));
  }

  const PassContext<T>& pass_;
  const QueryTiles<T>& tiles_;
  PrefillTiles<T> key_tiles_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
