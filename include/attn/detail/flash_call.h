// Layer 3: one pass of the flash path: what its tasks are, who runs them, and what they will do.
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

  void run(const Options& options) const {
    if (query_tiles() == 0) return;
    const Executor executor = executor_for(options.executor);
    const int workers = executor.concurrency();
    const QueryBlocks<T> blocks = blocks_for(workers);
    const Workspace workspace(bytes(blocks), workers, options.workspace, part_bytes(blocks));
    if (parts() > 1) return run_in_parts(executor, blocks, workspace);
    const Index per_task = blocks_per_task(blocks, workers), last = blocks.count() - 1;
    executor.run((last + per_task) / per_task, [&](Index task, int worker) {
      const Range range{task * per_task, std::min((task + 1) * per_task, last + 1)};
      for (Index block = range.begin; block < range.end; ++block) {
        // Tasks are taken in turn: likely, this worker gets next the one after those that the others have.
        const Index following = block + 1 < range.end ? block + 1 : range.begin + workers * per_task;
        with_loop([&](const auto& loop) {
          loop.run(blocks, block, blocks.at(std::min(following, last), 0), workspace.of(worker));
        });
      }
    });
  }

  Index workspace_bytes(const Executor& asked) const {
    if (query_tiles() == 0) return 0;
    const int workers = executor_for(asked).concurrency();
    const QueryBlocks<T> blocks = blocks_for(workers);
    return Workspace::needed(bytes(blocks), workers, part_bytes(blocks));
  }

  /// Adds what this pass does to what those before it do.
  void explain(const Executor& asked, Explanation& e) const {
    const int workers = std::max(executor_for(asked).concurrency(), 1);
    const QueryBlocks<T> blocks = blocks_for(workers);
    const Index per_task = blocks_per_task(blocks, workers);
    const Index tasks = parts() > 1 ? parts() * blocks.count() : (blocks.count() + per_task - 1) / per_task;
    const bool amx_unused = pass_.kernels.amx == Amx::used && tiles_.are_single() && !row_loop_.on_matrix_unit();
    ++e.passes;
    e.isa = amx_unused ? Isa::avx512 : pass_.kernels.isa;
    e.amx = amx_unused ? Amx::not_for_single_queries : pass_.kernels.amx;
    e.queries_per_tile = std::max(e.queries_per_tile, tiles_.most_queries());
    e.keys_per_tile = kKeyTile;
    e.query_tiles += query_tiles();
    e.tasks += tasks;
    e.threads = std::max(e.threads, static_cast<int>(std::min<Index>(workers, tasks)));
    with_loop([&](const auto& loop) {
      e.packs_keys |= loop.packs_keys();
      e.packs_values |= loop.packs_values();
      for (Index block = 0; query_tiles() > 0 && block < blocks.count(); ++block)
        for (Index i = 0; i < blocks.size(block); ++i) {
          Index full = 0, masked = 0;
          loop.for_each_key_tile(blocks.at(block, i), [&](const Range&, Coverage coverage) {
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
  /// Each part of the keys of a block is a task; what they leave is joined when all are done.
  void run_in_parts(const Executor& executor, const QueryBlocks<T>& blocks, const Workspace& workspace) const {
    const auto left = [&](Index task) { return workspace.shared() + task * row_loop_.part_bytes(); };
    executor.run(blocks.count() * parts(), [&](Index task, int worker) {
      row_loop_.run(blocks, task / parts(), task % parts(), workspace.of(worker), left(task));
    });
    executor.run(blocks.count(), [&](Index block, int) { row_loop_.join(blocks, block, left(block * parts())); });
  }

  Index parts() const { return tiles_.are_single() ? row_loop_.parts() : 1; }
  Index part_bytes(const QueryBlocks<T>& blocks) const {
    return parts() > 1 ? blocks.count() * parts() * row_loop_.part_bytes() : 0;
  }

  template <class Use>
  void with_loop(const Use& use) const {
    if (tiles_.are_single())
      use(row_loop_);
    else
      use(tile_loop_);
  }

  Index bytes(const QueryBlocks<T>& blocks) const {
    return tiles_.are_single() ? row_loop_.bytes() : tile_loop_.bytes(blocks.most_tiles());
  }
  Index query_tiles() const { return problem_.batch * problem_.heads * tiles_.count(); }

  /// Fewer tiles to a block where else there would be few blocks for each worker.
  QueryBlocks<T> blocks_for(Index workers) const {
    constexpr Index kBlocksPerWorker = 4;
    if (tiles_.are_single()) return {problem_, tiles_, RowLoop<T>::kMost};
    return {problem_, tiles_,
            std::min(tile_loop_.most_tiles(), query_tiles() / (kBlocksPerWorker * std::max<Index>(workers, 1)))};
  }

  /// A task is some neighbouring blocks, because they share keys: those of a window, or of a short head. They are few, so
  /// that no worker ends long after the others.
  Index blocks_per_task(const QueryBlocks<T>& blocks, Index workers) const {
    constexpr Index kTasksPerWorker = 64, kMost = 8;
    const Index wanted = std::clamp<Index>(blocks.count() / (kTasksPerWorker * workers), 1, kMost);
    const Index per_head = std::max<Index>(blocks.blocks_per_kv_head(), 1);
    return wanted < per_head ? wanted : wanted / per_head * per_head;  // short heads whole
  }

  Executor executor_for(const Executor& asked) const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return detail::executor_for(2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim), asked);
  }

  FlashPass<T> pass_;
  const Problem& problem_;
  QueryTiles<T> tiles_;
  TileLoop<T> tile_loop_;
  RowLoop<T> row_loop_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
