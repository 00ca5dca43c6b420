// Splits the keys of a few single queries among many workers, and merges the splits' results.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Splits of the keys of blocks of up to `rows` queries. Neither the splits nor the order in which they are merged
/// depends on the number of workers, so results do not depend on it.
template <class T>
class KvSplits {
 public:
  KvSplits(const Problem& problem, Index blocks, Index rows)
      : kv_len_(problem.kv_len), v_dim_(problem.v_dim), rows_(rows), count_(count_for(blocks)) {
    split_bytes_ = Arena<T>::count([&](Arena<T>& arena) { lay_out(arena); });
  }

  Index count() const { return count_; }

  Range keys(Index split) const {
    if (count_ == 1) return {0, kv_len_};
    const Index tiles = ceil_div(kv_len_, kKeyTile);
    return {tiles * split / count_ * kKeyTile, std::min(tiles * (split + 1) / count_ * kKeyTile, kv_len_)};
  }

  /// Bytes of the results of all splits of a block, in whole cache lines.
  Index bytes() const { return count_ * split_bytes_; }

  /// Stores the state of the recurrence after a split in the memory of its block.
  void store_partial(const TileMemory<T>& m, Index rows, Index split, std::byte* of_block) const {
    const TileMemory<T> to = at(of_block, split);
    std::copy_n(m.max, rows, to.max);
    std::copy_n(m.sum, rows, to.sum);
    std::copy_n(m.out, rows * v_dim_, to.out);
  }

  /// The state after all keys, merged from the splits' results, always in the order of the splits, whichever finished
  /// first.
  TileMemory<T> merged(Index rows, std::byte* of_block) const {
    const TileMemory<T> all = at(of_block, 0);
    Array<T, kMostSplits> factor;
    for (Index r = 0; r < rows; ++r) {
      T max = all.max[r];
      for (Index split = 1; split < count_; ++split) max = std::max(max, at(of_block, split).max[r]);
      for (Index split = 0; split < count_; ++split)
        factor[split] = SoftmaxState<T>::factor(at(of_block, split).max[r], max);
      all.max[r] = max;
      // As in the sums over tiles, the parts of the sums lost to rounding are kept, so that the error does not grow
      // with the number of splits.
      const auto add_up = [&](T* TileMemory<T>::*numbers, Index i) {
        T sum = 0, rest = 0;
        for (Index split = 0; split < count_; ++split)
          add_exactly(sum, rest, (at(of_block, split).*numbers)[i] * factor[split]);
        add_rest(sum, rest);
        (all.*numbers)[i] = sum;
      };
      add_up(&TileMemory<T>::sum, r);
      for (Index c = 0; c < v_dim_; ++c) add_up(&TileMemory<T>::out, r * v_dim_ + c);
    }
    return all;
  }

 private:
  /// Keys are split if there are few blocks, which would make too few tasks. Splits are not short: each costs a merge,
  /// and a worker can only guess which split it runs next, and thus what to prefetch.
  Index count_for(Index blocks) const {
    constexpr Index kLeastKeys = 16 * kKeyTile;
    if (kv_len_ < 2 * kLeastKeys) return 1;
    return std::max<Index>(std::min(kMostSplits / std::max<Index>(blocks, 1), kv_len_ / kLeastKeys), 1);
  }

  static constexpr Index kMostSplits = 64;  ///< of all blocks together

  TileMemory<T> at(std::byte* of_block, Index split) const {
    Arena<T> arena(of_block + split * split_bytes_);
    return lay_out(arena);
  }
  TileMemory<T> lay_out(Arena<T>& arena) const {
    TileMemory<T> m{};
    m.max = arena.take(rows_);
    m.sum = arena.take(rows_);
    m.out = arena.take(rows_ * v_dim_);
    return m;
  }

  Index kv_len_, v_dim_, rows_, count_, split_bytes_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
