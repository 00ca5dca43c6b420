// Which tiles of queries are worked on together, because they read the same keys.
#pragma once

#include <algorithm>

#include "attn/detail/flash/call_tensors.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

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

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
