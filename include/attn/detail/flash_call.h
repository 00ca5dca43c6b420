// Layer 3: one pass of the flash path over some tensors: what its tasks are, and what they do.
#pragma once

#include "attn/detail/row_loop.h"
#include "attn/detail/tile_loop.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// With up to so many queries each goes by itself: a tile computes whole vectors of them, however few there are. The matrix
/// unit is worth it from two on.
inline Index few_queries(Amx amx) { return amx == Amx::used ? 1 : 4; }

template <class T>
class FlashCall {
 public:
  FlashCall(const CallTensors<T>& tensors, const TileMods<T>* mods, const ChosenKernels<T>& kernels, bool resumes)
      : pass_{tensors, mods, kernels, resumes},
        problem_(tensors.problem),
        tiles_(kernels.family, problem_.q_len, problem_.q_len <= few_queries(kernels.amx)),
        tile_loop_(pass_, tiles_),
        row_loop_(pass_, tiles_) {}
  FlashCall(const FlashCall&) = delete;  // its parts refer to each other

  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return 2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  /// How the call is cut for so many workers.
  struct Cut {
    QueryBlocks<T> blocks;
    Index per_task;  ///< neighbouring blocks
    Index parts;     ///< of the keys of a block, each a task
    Index tasks;     ///< 0: there is nothing to do
    Index bytes;     ///< that each worker needs
    Index left;      ///< bytes that the tasks leave for join()

    /// Blocks whose parts are to be joined when all tasks are done.
    Index joins() const { return parts > 1 ? blocks.count() : 0; }
  };
  Cut cut(Index workers) const {
    const QueryBlocks<T> blocks = blocks_for(workers);
    if (query_tiles() == 0) return {blocks, 1, 1, 0, 0, 0};
    const bool single = tiles_.are_single();
    const Index parts = single ? row_loop_.parts().count() : 1, per_task = blocks_per_task(blocks, parts, workers);
    return {
        blocks,
        per_task,
        parts,
        (blocks.count() + per_task - 1) / per_task * parts,
        single ? row_loop_.bytes(std::min(per_task, row_loop_.most_together())) : tile_loop_.bytes(blocks.most_tiles()),
        parts > 1 ? blocks.count() * row_loop_.parts().bytes() : 0};
  }

  /// One of the tasks, in cut.bytes of memory. With several parts it leaves its result behind `left`.
  void run(const Cut& cut, Index task, Index workers, std::byte* memory, std::byte* left) const {
    const auto blocks_of = [&](Index number) {
      const Index first = number / cut.parts * cut.per_task;
      return Range{first, std::min(first + cut.per_task, cut.blocks.count())};
    };
    // Tasks are taken in turn: likely, this worker gets next the one after those that the others have.
    const Index next = std::min(task + workers, cut.tasks - 1);
    const Range range = blocks_of(task), next_range = blocks_of(next);
    const Index step = tiles_.are_single() ? row_loop_.most_together() : 1;
    for (Index block = range.begin; block < range.end; block += step) {
      const bool more = block + step < range.end;
      if (tiles_.are_single()) {
        const Index part = task % cut.parts;
        row_loop_.run(cut.blocks, {{block, std::min(block + step, range.end)}, part},
                      more ? typename RowLoop<T>::Part{{block + step, range.end}, part}
                           : typename RowLoop<T>::Part{next_range, next % cut.parts},
                      memory, left);
      } else {
        tile_loop_.run(cut.blocks, block, cut.blocks.at(more ? block + 1 : next_range.begin, 0), memory);
      }
    }
  }

  /// The result of a block from what its parts have left.
  void join(const Cut& cut, Index block, std::byte* left) const { row_loop_.join(cut.blocks, block, left); }

  /// Adds what this pass does to what those before it do.
  void explain(const Cut& cut, Explanation& e) const {
    const bool amx_unused = pass_.kernels.amx == Amx::used && tiles_.are_single() && !row_loop_.on_matrix_unit();
    ++e.passes;
    e.isa = amx_unused ? Isa::avx512 : pass_.kernels.isa;
    e.amx = amx_unused ? Amx::not_for_single_queries : pass_.kernels.amx;
    e.queries_per_tile = std::max(e.queries_per_tile, tiles_.most_queries());
    e.keys_per_tile = kKeyTile;
    e.query_tiles += query_tiles();
    with_loop([&](const auto& loop) {
      e.packs_keys |= loop.packs_keys();
      e.packs_values |= loop.packs_values();
      for (Index block = 0; query_tiles() > 0 && block < cut.blocks.count(); ++block)
        for (Index i = 0; i < cut.blocks.size(block); ++i) {
          Index full = 0, masked = 0;
          loop.for_each_key_tile(cut.blocks.at(block, i), [&](const Range&, Coverage coverage) {
            full += coverage == Coverage::all;
            masked += coverage == Coverage::some;
          });
          e.full_tiles += full;
          e.masked_tiles += masked;
          // The visited range need not begin where a tile would without it.
          const Index all = (problem_.kv_len + kKeyTile - 1) / kKeyTile;
          e.skipped_tiles += std::max<Index>(all - full - masked, 0);
        }
    });
  }

 private:
  template <class Use>
  void with_loop(const Use& use) const {
    if (tiles_.are_single())
      use(row_loop_);
    else
      use(tile_loop_);
  }

  Index query_tiles() const { return problem_.batch * problem_.heads * tiles_.count(); }

  /// Fewer tiles to a block where else there would be few blocks for each worker.
  QueryBlocks<T> blocks_for(Index workers) const {
    constexpr Index kBlocksPerWorker = 4;
    if (tiles_.are_single()) return {problem_, tiles_, RowLoop<T>::kMost};
    return {problem_, tiles_,
            std::min(tile_loop_.most_tiles(), query_tiles() / (kBlocksPerWorker * std::max<Index>(workers, 1)))};
  }

  /// A task is some neighbouring blocks, because they share keys: those of a window, or of a short head; or because their keys
  /// are neighbours in memory. They are few, so that no worker ends long after the others.
  Index blocks_per_task(const QueryBlocks<T>& blocks, Index parts, Index workers) const {
    constexpr Index kMost = 8;
    const Index together = tiles_.are_single() ? row_loop_.most_together() : 1;
    const Index tasks_per_worker = together > 1 ? 4 : 64;
    if (parts > 1 && together == 1) return 1;
    const Index wanted =
        std::clamp<Index>(blocks.count() * parts / (tasks_per_worker * std::max<Index>(workers, 1)), 1, kMost);
    const Index per_head = std::max<Index>(blocks.blocks_per_kv_head(), 1);
    return wanted < per_head ? wanted : wanted / per_head * per_head;  // short heads whole
  }

  FlashPass<T> pass_;
  const Problem& problem_;
  QueryTiles<T> tiles_;
  TileLoop<T> tile_loop_;
  RowLoop<T> row_loop_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
