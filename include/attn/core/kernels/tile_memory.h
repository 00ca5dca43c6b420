// Tile sizes, and the working memory of kernels.
#pragma once

#include <cstddef>

#include "attn/core/simd/vec.h"
#include "attn/tensor.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Keys in a tile: enough to amortise the passes over `out`, and few enough for query, scores and out to stay in the L1
/// cache at head_dim 64.
constexpr Index kKeyTile = 64;

/// Keys in a step of the online softmax for single queries: enough that the softmax, a chain of dependent operations,
/// is short beside the products. With steps of one tile, 8 heads of 128 keys took 1.2 times as long.
constexpr Index kLongStep = 8 * kKeyTile;

/// Maximum number of vectors of queries in a tile, in general and for an instruction set with this many registers.
constexpr int kMaxVectors = 3;
template <int kRegisters>
constexpr int kWidestTile = kRegisters >= 16 ? 3 : 2;

/// Maximum number of rows of keys (scores) or columns of values (output) that a kernel reads at a time.
constexpr Index kMaxRows = 8;

/// Number of keys whose weights a tile's softmax sums before it adds their sum to the sum of the tile.
constexpr Index kSummedKeys = 16;
static_assert(kSummedKeys == 16 && kKeyTile % kSummedKeys == 0, "make_problem() checks kv_offset for it");

/// Tiles of keys in a stretch. `out` is accumulated over a tile first, then over a stretch, then over all stretches
/// with compensated summation, so that many small weights are not lost one by one beside a large one. The error is that
/// of 64 + 64 additions, regardless of the number of keys; Eigen's products accumulate some 256 terms in sequence. A
/// call of up to 4096 keys has one stretch.
constexpr Index kStretch = 64;

/// The output of all stretches before the current one, relative to the maxima `max`, and the part lost to rounding.
/// With Options::row_invariant, totals have the form of an earlier call's result: `out` is divided by the sums, `max`
/// has the log-sum-exps, and the first row of `out_rest` has the parts of log-sum-exps lost to rounding.
template <class T>
struct Totals {
  T* max;       ///< (queries)
  T* out;       ///< as TileState::out
  T* out_rest;  ///< as `out`
};

/// The position of a kernel's values in a tile whose values are stored in several runs. The sums are added to the
/// output with the last run.
struct ValueRun {
  bool is_first = true, is_last = true;
  bool is_whole() const { return is_first && is_last; }
};

/// The queries of a tile, and their state in the recurrence over the keys.
template <class T>
struct TileState {
  T* query;     ///< (head_dim, queries), scaled unless `scale` is not 1
  T* out;       ///< (v_dim, queries), not yet divided by the sum
  T* max;       ///< (queries): the maximum of each query's scores so far
  T* sum;       ///< (queries): the sum of e^(score - max) so far
  T* sum_rest;  ///< (queries): the part of `sum` lost to rounding; with it, errors do not grow with the number of keys
  T* excess;    ///< (queries): what rounding weights to bf16 has added to their sum; `sum` is that of unrounded weights
  Totals<T> totals;
  T* whole_sum;  ///< (queries): with weight mods, the sum over all keys, which a first sweep has computed
};

/// What a step of the recurrence reads and computes. Tiles of queries that are processed in turn share it, but for
/// `arranged_query`.
template <class T>
struct StepMemory {
  T* scores;          ///< (keys, queries)
  T* weights;         ///< (keys, queries): in place of the scores; in bf16, separate and for several tiles of keys
  T* tile_max;        ///< (queries): the maximum of the scores of the current tile of keys
  T* tile_sum;        ///< (queries): the sum of its weights
  T* rescale;         ///< (queries): e^(old max - new max)
  T* packed_key;      ///< (keys, head_dim), where the caller's rows cannot be read in place; at first, packed queries
  T* packed_value;    ///< (keys, v_dim), where the caller's rows cannot be read in place
  T* arranged_value;  ///< (keys, v_dim) in the order that kernels need, if other than rows
  bool* dropped;      ///< (keys, queries), only used next to values that are not finite, and by weight mods
  T scale;            ///< factor that the scores must still be multiplied by
  const T* score_weight;  ///< weights of additive scores: (head_dim) for a tile, (queries, head_dim) for single queries

  // Only for single queries:
  Index row;          ///< distance from the scores of one query to those of the next
  T* arranged_query;  ///< the queries once more, as the matrix unit or products of integers read them
  T* value_sums;      ///< (queries, v_dim): the sums so far over values in several runs
  ValueRun run;       ///< the current one of these
};

/// The working memory of one tile of queries, as the kernels for tiles use it. The kernels for single queries store
/// rows (see DecodeKernels), and those for bf16 pairs of bf16 in some members (see Bf16Packing).
template <class T>
struct TileMemory : TileState<T>, StepMemory<T> {};

/// Rows of contiguous elements, as kernels read them: in the caller's memory, or packed.
template <class T>
struct Rows {
  const T* data;
  Index stride;
};

/// How the output so far is treated when a tile's values are added to it.
enum class OutUpdate {
  overwrite,        ///< this stretch has no output yet
  add,              ///< no maximum moved
  rescale_and_add,  ///< a maximum moved
};

/// Rows to prefetch while a tile is processed, a few thousand cycles before they are read: from each block, up to half
/// as many rows as the tile has keys. All sizes are in bytes.
struct PrefetchPlan {
  struct Block {
    const std::byte* data;
    Index stride;
    Index width;
  };
  static constexpr Index kBlocks = 4;
  Array<Block, kBlocks> block;

  /// A plan that prefetches nothing new. The kernel needs some address, so the plan names a line that is already in the
  /// cache.
  static PrefetchPlan nothing(const void* in_cache) {
    PrefetchPlan plan{};
    for (Block& b : plan.block) b = {static_cast<const std::byte*>(in_cache), 0, 64};
    return plan;
  }
};

/// The plan for kernels that ignore it. It is a constant, because g++ 12 fills a new one with `rep stos`, which keeps
/// later instructions from starting early: bf16 tiles on the matrix unit took 1.02 times as long at head_dim 64.
inline constexpr PrefetchPlan kNoPlan{};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
