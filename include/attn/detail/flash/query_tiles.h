// How queries are cut into tiles and blocks of tiles, and the memory that a tile works in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "attn/detail/base/arena.h"
#include "attn/detail/kernels/kernel_table.h"
#include "attn/detail/tensor/problem.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A tile of queries: the rows `rows` of a head, of which it is tile number `tile`.
struct QueryTile {
  Index batch;
  Index head;
  Index tile;
  Range rows;
};

/// How the queries of one head are cut into tiles: as few as possible, of nearly equal height, each but the last a
/// whole number of vectors. Or into single queries.
template <class T>
class QueryTiles {
 public:
  /// `most`: how many queries a tile may have; 0: as many as kernels can. A tile has at least one vector.
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

/// The tiles of queries of a call in blocks. The tiles of a block are neighbours that share a key and value head, whose
/// keys and values are read, and packed where they must be, once for the whole block.
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

  /// How many tiles a block has.
  Index size(Index block) const { return range(block).size(); }

  /// Tile number `i` of a block. The last queries come first: under a causal mask they see the most keys, and the
  /// longest work should not begin last.
  QueryTile at(Index block, Index i) const {
    const Division kv_head = divide(divide(block, per_kv_head_).quotient, problem_->kv_heads),
                   number = divide(range(block).begin + i, tiles_per_head_);
    const Index tile = tiles_per_head_ - 1 - number.remainder;
    return {kv_head.quotient, kv_head.remainder * group_ + number.quotient, tile, tiles_->rows(tile)};
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

/// Whether so many keys may make more than one stretch.
constexpr bool has_totals(Index keys) { return keys > kStretch * kKeyTile; }

/// How many numbers T the parts of a tile's memory take.
struct TileSizes {
  Index queries;
  Index query;  ///< for each query, as for `out`
  Index out;
  Index packed_key = 0;    ///< for each row of a chunk; 0 where all are read in place
  Index packed_value = 0;  ///< likewise
  Index arranged = 0;      ///< likewise
  Index weights = 0;       ///< likewise; 0 where they take the place of the scores
  Index chunk = kKeyTile;  ///< rows that a chunk of keys has
  Index keys = kKeyTile;   ///< that scores have room for
  Index value_sums = 0;    ///< for each query: as for `out`, where values may be read in several runs
  bool totals = false;     ///< whether there may be more than one stretch
};

/// How the memory of a worker that works on `tiles` tiles of queries in turn is laid out. Its size is linear in
/// head_dim + v_dim and does not depend on the lengths.
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
    m.arranged = arena.take(sizes_.chunk * sizes_.arranged);
    m.packed_key = arena.take(sizes_.chunk * sizes_.packed_key);
    m.packed_value = arena.take(sizes_.chunk * sizes_.packed_value);
    m.value_sums = arena.take(sizes_.value_sums * queries);
    m.tile_max = arena.take(queries);
    m.rescale = arena.take(queries);
    Index own = 0;  // what each tile has for itself
    for (Index i = 0; i <= tile; ++i) {
      const Index begin = arena.taken();
      m.query = arena.take(sizes_.query * queries);
      m.out = arena.take(sizes_.out * queries);
      m.max = arena.take(queries);
      m.sum = arena.take(queries);
      m.sum_rest = arena.take(queries);
      if (sizes_.totals)
        m.totals = {arena.take(queries), arena.take(sizes_.out * queries), arena.take(sizes_.out * queries)};
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

/// The caller's memory from its first cache line on. @throws std::invalid_argument if it has fewer than `need` bytes,
/// of which kAlignment - 1 may be lost in front.
inline std::span<std::byte> checked_workspace(std::span<std::byte> given, Index need) {
  const Index have = static_cast<Index>(given.size());
  require(have >= need, "the workspace has ", have, " bytes, the call needs ", need,
          " with this executor; see workspace_bytes()");
  const auto address = reinterpret_cast<std::uintptr_t>(given.data());
  return given.subspan((kAlignment - address % kAlignment) % kAlignment);
}

/// The working memory of a call, the caller's or allocated here: `bytes` for each worker and `shared` for all, both in
/// whole cache lines.
class Workspace {
 public:
  /// The bytes that a caller's memory of any alignment must have.
  static Index needed(Index bytes, int workers, Index shared = 0) { return workers * bytes + shared + kAlignment - 1; }

  Workspace(Index bytes, int workers, std::span<std::byte> given = {}, Index shared = 0)
      : bytes_(bytes), workers_(workers) {
    require(workers > 0, "the executor has ", workers, " workers; there must be at least one, the caller");
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

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
