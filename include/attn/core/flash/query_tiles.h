// Splits queries into tiles and blocks of tiles, and lays out the memory of a tile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "attn/core/base/arena.h"
#include "attn/core/kernels/kernel_table.h"
#include "attn/core/tensor/problem.h"
#include "attn/tensor.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of queries: tile number `tile` of a head, with its rows `rows`.
struct QueryTile {
  Index batch;
  Index head;
  Index tile;
  Range rows;
};

/// Splits the queries of one head into single queries, or into as few tiles as possible. Tiles are of nearly equal
/// width, and all but the last are a whole number of vectors wide.
template <class T>
class QueryTiles {
 public:
  /// `most`: maximum number of queries per tile; 0: as many as the kernels take. A tile has at least one vector.
  QueryTiles(const KernelFamily<T>& kernels, Index q_len, bool single, Index most = 0)
      : widest_(kernels.widest), q_len_(q_len), lanes_(single ? 1 : kernels.by_vectors[0].queries), single_(single) {
    if (most > 0) widest_ = std::clamp<Index>(most / lanes_, 1, widest_);
  }

  Index count() const { return single_ ? q_len_ : ceil_div(vectors(), widest_); }
  Range rows(Index tile) const {
    if (single_) return {tile, tile + 1};
    return {vectors() * tile / count() * lanes_, std::min(vectors() * (tile + 1) / count() * lanes_, q_len_)};
  }
  Index most_queries() const { return single_ ? 1 : lanes_ * std::min<Index>(vectors(), widest_); }
  bool are_single() const { return single_; }

 private:
  Index vectors() const { return ceil_div(q_len_, lanes_); }

  Index widest_, q_len_, lanes_;
  bool single_;
};

/// Groups the query tiles of a call into blocks. The tiles of a block are neighbours that share a key and value head.
/// The head's keys and values are read, and packed if necessary, once for the whole block.
template <class T>
class QueryBlocks {
 public:
  /// Makes as few blocks as possible, of nearly equal size and at most `most` tiles each.
  QueryBlocks(const Problem& problem, const QueryTiles<T>& tiles, Index most)
      : problem_(&problem),
        tiles_(&tiles),
        group_(problem.heads == problem.kv_heads ? 1 : problem.heads / problem.kv_heads),
        tiles_per_head_(tiles.count()),
        per_block_(std::max<Index>(std::min(most, per_kv_head()), 1)),
        per_kv_head_(ceil_div(per_kv_head(), per_block_)) {}

  Index count() const { return problem_->batch * problem_->kv_heads * per_kv_head_; }
  Index most_tiles() const { return per_block_; }
  Index blocks_per_kv_head() const { return per_kv_head_; }

  /// Number of tiles in a block.
  Index size(Index block) const { return range(block).size(); }

  /// Tile number `i` of a block. The last queries come first: under a causal mask they see the most keys, and the
  /// longest work should not begin last.
  QueryTile at(Index block, Index i) const {
    const Division kv_head = divide(divide(block, per_kv_head_).quotient, problem_->kv_heads),
                   number = divide(range(block).begin + i, tiles_per_head_);
    const Index tile = tiles_per_head_ - 1 - number.remainder;
    return {kv_head.quotient, problem_->head_of(kv_head.remainder, number.quotient), tile, tiles_->rows(tile)};
  }

 private:
  Index per_kv_head() const { return group_ * tiles_per_head_; }
  Range range(Index block) const {
    if (per_kv_head_ == 1) return {0, per_kv_head()};
    const Index i = block % per_kv_head_;
    return {per_kv_head() * i / per_kv_head_, per_kv_head() * (i + 1) / per_kv_head_};
  }

  const Problem* problem_;
  const QueryTiles<T>* tiles_;
  Index group_, tiles_per_head_;
  Index per_block_;    ///< tiles
  Index per_kv_head_;  ///< blocks
};

/// Whether this many keys may make more than one stretch.
constexpr bool has_totals(Index keys) { return keys > kStretch * kKeyTile; }

/// Sizes of the parts of a tile's memory, in elements of type T.
struct TileSizes {
  Index queries;
  Index query;  ///< per query, like `out`
  Index out;
  Index packed_key = 0;      ///< per row of a chunk; 0 if all are read in place
  Index packed_value = 0;    ///< per row of a chunk; 0 if all are read in place
  Index arranged_value = 0;  ///< per row of a chunk; 0 if nothing is arranged
  Index weights = 0;         ///< per row of a chunk; 0 if they overwrite the scores
  Index chunk = kKeyTile;    ///< rows in a chunk of keys
  Index keys = kKeyTile;     ///< keys that the scores have space for
  Index value_sums = 0;      ///< per query, like `out`; 0 if values are not read in runs
  bool totals = false;       ///< whether there may be more than one stretch
  bool whole_sum = false;    ///< whether weight mods need the sum over all keys
};

/// Lays out the memory of a worker that processes `tiles` tiles of queries in turn. Its size is linear in head_dim +
/// v_dim and does not depend on the lengths of sequences.
template <class T>
class TileLayout {
 public:
  explicit TileLayout(const TileSizes& sizes, Index tiles = 1) : sizes_(sizes), tiles_(tiles) {}

  /// Bytes for one worker, in whole cache lines.
  Index bytes() const {
    return Arena<T>::count([&](Arena<T>& arena) { lay_out(arena, 0); });
  }
  /// The memory of one of the tiles.
  TileMemory<T> at(std::byte* memory, Index tile = 0) const {
    Arena<T> arena(memory);
    return lay_out(arena, tile);
  }

 private:
  TileMemory<T> lay_out(Arena<T>& arena, Index tile) const {
    const Index queries = sizes_.queries;
    TileMemory<T> m{};
    m.scores = arena.take(sizes_.keys * queries);
    m.row = sizes_.keys;
    m.weights = sizes_.weights == 0 ? m.scores : arena.take(sizes_.chunk * sizes_.weights);
    m.arranged_value = arena.take(sizes_.chunk * sizes_.arranged_value);
    m.packed_key = arena.take(sizes_.chunk * sizes_.packed_key);
    m.packed_value = arena.take(sizes_.chunk * sizes_.packed_value);
    m.value_sums = arena.take(sizes_.value_sums * queries);
    m.tile_max = arena.take(queries);
    m.tile_sum = arena.take(queries);
    m.rescale = arena.take(queries);
    Index own = 0;  // size of each tile's own part
    for (Index i = 0; i <= tile; ++i) {
      const Index begin = arena.taken();
      m.query = arena.take(sizes_.query * queries);
      m.out = arena.take(sizes_.out * queries);
      m.max = arena.take(queries);
      m.sum = arena.take(queries);
      m.sum_rest = arena.take(queries);
      m.excess = arena.take(queries);
      if (sizes_.totals)
        m.totals = {arena.take(queries), arena.take(sizes_.out * queries), arena.take(sizes_.out * queries)};
      if (sizes_.whole_sum) m.whole_sum = arena.take(queries);
      own = arena.taken() - begin;
    }
    arena.skip((tiles_ - 1 - tile) * own);
    m.dropped = arena.template take_as<bool>(sizes_.keys * queries);
    m.scale = 1;
    return m;
  }

  TileSizes sizes_;
  Index tiles_;
};

/// The caller's memory from its first aligned byte on. @throws std::invalid_argument if it has fewer than `need` bytes,
/// of which alignment may cost kAlignment - 1.
inline std::span<std::byte> checked_workspace(std::span<std::byte> given, Index need) {
  const Index have = static_cast<Index>(given.size());
  require(have >= need, "the workspace has ", have, " bytes, but the call needs ", need,
          " with this executor; see workspace_bytes()");
  const auto address = reinterpret_cast<std::uintptr_t>(given.data());
  return given.subspan((kAlignment - address % kAlignment) % kAlignment);
}

/// The working memory of a call, the caller's or allocated here: `bytes` for each worker and `shared` for all, both in
/// whole cache lines.
class Workspace {
 public:
  /// Bytes that the caller's memory must have, regardless of its alignment.
  static Index needed(Index bytes, int workers, Index shared = 0) { return workers * bytes + shared + kAlignment - 1; }

  Workspace(Index bytes, int workers, std::span<std::byte> given = {}, Index shared = 0)
      : bytes_(bytes), workers_(workers) {
    require(workers > 0, "the executor has ", workers, " workers, but needs at least one, the calling thread");
    if (given.data() == nullptr) {
      own_ = Tensor<std::byte, 1>::uninitialized({workers * bytes + shared});
      first_ = own_.data();
      return;
    }
    first_ = checked_workspace(given, needed(bytes, workers, shared)).data();
  }

  std::byte* of(int worker) const { return first_ + worker * bytes_; }
  std::byte* shared() const { return of(workers_); }

 private:
  Index bytes_;
  int workers_;
  Tensor<std::byte, 1> own_;
  std::byte* first_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
