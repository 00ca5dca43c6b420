// The sizes of a tile, and the memory that kernels work in.
#pragma once

#include <cstddef>

#include "attn/detail/simd/simd.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Keys in a tile: long enough to amortise the passes over `out`, short enough for query, scores and out to stay in the
/// L1 cache at head_dim 64.
constexpr Index kKeyTile = 64;

/// Keys that single queries take in a step of the recurrence: so many that the softmax, whose parts wait for each
/// other, is short beside the products. With steps of one tile, 8 heads of 128 keys took 1.2 times as long.
constexpr Index kLongStep = 8 * kKeyTile;

/// Most vectors of queries in a tile.
constexpr int kMaxVectors = 3;

/// Rows of keys (score tile) or columns of values (value tile) that a kernel reads at a time, at most.
constexpr Index kMaxRows = 8;

/// Tiles of keys in a stretch. `out` is added up in a tile first, then in a stretch, then over all with what rounding
/// takes from it kept apart, so that many small weights are not lost beside a large one, one by one. Its error is that
/// of 64 + 64 additions, however many keys there are; Eigen's products add up some 256 in turn. A call of up to 4096
/// keys has one stretch.
constexpr Index kStretch = 64;

/// The output of all stretches before the present one, relative to the maxima `max`, and what rounding took from it.
template <class T>
struct Totals {
  T* max;       ///< (queries)
  T* out;       ///< as TileMemory::out
  T* out_rest;  ///< likewise
};

/// The working memory of one tile of queries, as the kernels for tiles have it. (Those for single queries have the same
/// with queries as rows: see DecodeKernels. Those of the matrix unit have pairs of numbers of 16 bits in some: see
/// AmxKernels.) The first six belong to the tile, the others to whichever is worked on.
template <class T>
struct TileMemory {
  T* query;     ///< (head_dim, queries), scaled unless `scale` is not 1
  T* out;       ///< (v_dim, queries), not yet divided by the sum
  T* max;       ///< (queries): of each query's scores so far
  T* sum;       ///< (queries): of e^(score - max) so far
  T* sum_rest;  ///< (queries): what rounding took from it, so that its error does not grow with the number of keys
  Totals<T> totals;
  T* scores;        ///< (keys, queries)
  Index row;        ///< of single queries: from the scores of one to those of the next
  T* tile_max;      ///< (queries): of the scores of the present tile
  T* rescale;       ///< (queries): e^(old max - new max)
  T* weights;       ///< (keys, queries): the same as `scores`, or apart for several tiles of keys
  T* packed_key;    ///< (keys, head_dim), where the caller's rows cannot be read in place
  T* packed_value;  ///< (keys, v_dim), likewise
  T* arranged;      ///< (keys, v_dim) in another order, where kernels want more of values than packed rows
  bool* dropped;    ///< (keys, queries), only used next to values that are not finite
  T scale;          ///< what the scores must still be multiplied by
  /// Of additive scores: (head_dim); of single queries (queries, head_dim).
  const T* score_weight;
};

/// Rows of numbers next to each other, as kernels read them: in the caller's memory, or packed.
template <class T>
struct Rows {
  const T* data;
  Index stride;
};

/// What becomes of the output so far when the values of a tile are added to it.
enum class OutUpdate {
  overwrite,        ///< there is none yet in this stretch
  add,              ///< no maximum moved
  rescale_and_add,  ///< some did
};

/// Rows to fetch from memory while a tile is worked on, a few thousand cycles before somebody reads them: up to half as
/// many of each block as there are keys in the tile. All sizes are in bytes.
struct PrefetchPlan {
  struct Block {
    const std::byte* data;
    Index stride;
    Index width;
  };
  static constexpr Index kBlocks = 4;
  Array<Block, kBlocks> block;

  /// Nothing needs to be fetched. The kernel needs some address, so this is a line that is already in the cache.
  static PrefetchPlan nothing(const void* in_cache) {
    PrefetchPlan plan{};
    for (Block& b : plan.block) b = {static_cast<const std::byte*>(in_cache), 0, 64};
    return plan;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
