// Which tiles of queries are worked on together, because they read the same keys.
#pragma once

#include <algorithm>

#include "attn/detail/flash/call_tensors.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The tiles of queries of a call in blocks: neighbours that share a key and value head, so that its keys and values
/// are read, and packed where they must, once for all of a block.
template <class T>
class QueryBlocks {
 public:
  /// As few blocks as can be, of at most so many tiles each and nearly equal.
  QueryBlocks(const Problem& problem, const QueryTiles<T>& tiles, Index most)
      : problem_(&problem), tiles_(&tiles), per_block_(std::max<Index>(std::min(most, per_kv_head()), 1)) {}

  Index count() const { return problem_->batch * problem_->kv_heads * blocks_per_kv_head(); }
  Index most_tiles() const { return per_block_; }
  Index blocks_per_kv_head() const { return ceil_div(per_kv_head(), per_block_); }

  /// How many tiles a block has.
  Index size(Index block) const { return range(block).size(); }

  /// Tile number `i` of a block. The last queries come first: under a causal mask they see the most keys, and the
  /// longest work should not be begun last.
  QueryTile at(Index block, Index i) const {
    const Index kv_head = block / blocks_per_kv_head(), number = range(block).begin + i;
    const Index group = problem_->heads / problem_->kv_heads;
    const Index tile = tiles_->count() - 1 - number % tiles_->count();
    return {kv_head / problem_->kv_heads, kv_head % problem_->kv_heads * group + number / tiles_->count(), tile,
            tiles_->rows(tile)};
  }

 private:
  Index per_kv_head() const { return problem_->heads / problem_->kv_heads * tiles_->count(); }
  Range range(Index block) const {
    const Index n = blocks_per_kv_head(), i = block % n;
    return {per_kv_head() * i / n, per_kv_head() * (i + 1) / n};
  }

  const Problem* problem_;
  const QueryTiles<T>* tiles_;
  Index per_block_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
