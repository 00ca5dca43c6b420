// The sizes of a tile, and the memory that kernels work in.
#pragma once

#include <cstddef>

#include "attn/detail/simd/vec.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Keys in a tile: enough to amortise the passes over `out`, and few enough for query, scores and out to stay in the L1
/// cache at head_dim 64.
constexpr Index kKeyTile = 64;

/// Keys in a step of the recurrence for single queries: so many that the softmax, whose parts wait for each other, is
/// short beside the products. With steps of one tile, 8 heads of 128 keys took 1.2 times as long.
constexpr Index kLongStep = 8 * kKeyTile;

/// The most vectors of queries in a tile.
constexpr int kMaxVectors = 3;

/// The most rows of keys (scores) or columns of values (output) that a kernel reads at a time.
constexpr Index kMaxRows = 8;

/// Tiles of keys in a stretch. `out` is added up over a tile first, then over a stretch, then over all stretches with
/// what rounding takes from it kept apart, so that many small weights are not lost one by one beside a large one. The
/// error is that of 64 + 64 additions, however many keys there are; Eigen's products add up some 256 in turn. A call of
/// up to 4096 keys has one stretch.
constexpr Index kStretch = 64;

/// The output of all stretches before the present one, relative to the maxima `max`, and what rounding took from it.
template <class T>
struct Totals {
  T* max;       ///< (queries)
  T* out;       ///< as TileMemory::out
  T* out_rest;  ///< as `out`
};

/// Which of a tile's values a kernel is given, where they lie in several runs. Their sums join the output with the last
/// run.
struct ValueRun {
  bool is_first = true, is_last = true;
  bool is_whole() const { return is_first && is_last; }
};

/// The working memory of one tile of queries, as the kernels for tiles use it. The kernels for single queries have
/// queries as rows (see DecodeKernels); those for bf16 have pairs of its numbers in some of it (see
/// Bf16Packing). The first six members belong to the tile, the others to whichever tile is worked on.
template <class T>
struct TileMemory {
  T* query;     ///< (head_dim, queries), scaled unless `scale` is not 1
  T* out;       ///< (v_dim, queries), not yet divided by the sum
  T* max;       ///< (queries): of each query's scores so far
  T* sum;       ///< (queries): of e^(score - max) so far
  T* sum_rest;  ///< (queries): what rounding took from it, so that its error does not grow with the number of keys
  Totals<T> totals;
  T* scores;        ///< (keys, queries)
  Index row;        ///< single queries: from the scores of one query to those of the next
  T* tile_max;      ///< (queries): of the scores of the present tile
  T* rescale;       ///< (queries): e^(old max - new max)
  T* weights;       ///< (keys, queries): the same as `scores`, or apart for several tiles of keys
  T* packed_key;    ///< (keys, head_dim), where the caller's rows cannot be read in place
  T* packed_value;  ///< (keys, v_dim), where the caller's rows cannot be read in place
  T* arranged;      ///< (keys, v_dim) in the order that kernels want, if rows will not do
  bool* dropped;    ///< (keys, queries), only used next to values that are not finite
  T scale;          ///< what the scores must still be multiplied by
  /// Single queries, over values in several runs: the sums so far, (queries, v_dim), and which run comes.
  T* value_sums;
  ValueRun run;
  /// Weights of additive scores: (head_dim) for a tile, (queries, head_dim) for single queries.
  const T* score_weight;
};

/// Rows of numbers next to each other, as kernels read them: in the caller's memory, or packed.
template <class T>
struct Rows {
  const T* data;
  Index stride;
};

/// What becomes of the output so far when a tile's values are added to it.
enum class OutUpdate {
  overwrite,        ///< this stretch has no output yet
  add,              ///< no maximum moved
  rescale_and_add,  ///< a maximum moved
};

/// Rows to fetch from memory while a tile is worked on, a few thousand cycles before they are read: up to half as many
/// of each block as there are keys in the tile. All sizes are in bytes.
struct PrefetchPlan {
  struct Block {
    const std::byte* data;
    Index stride;
    Index width;
  };
  static constexpr Index kBlocks = 4;
  Array<Block, kBlocks> block;

  /// A plan that fetches nothing new. The kernel needs some address, so the plan names a line that is in the cache
  /// already.
  static PrefetchPlan nothing(const void* in_cache) {
    PrefetchPlan plan{};
    for (Block& b : plan.block) b = {static_cast<const std::byte*>(in_cache), 0, 64};
    return plan;
  }
};

/// The plan of kernels that look at none. It is in memory once: g++ 12 fills a new one by `rep stos`, behind which the
/// processor begins nothing early, and tiles of bf16 on the matrix unit took 1.02 times as long at head_dim 64.
inline constexpr PrefetchPlan kNoPlan{};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
