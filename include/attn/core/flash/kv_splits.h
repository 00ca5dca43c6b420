// How the keys of few queries are split into tasks, and how the results are merged.
#pragma once

#include <algorithm>
#include <cstddef>

#include "attn/core/base/arena.h"
#include "attn/core/base/unfused.h"
#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Splits of the keys of blocks of up to `rows` queries, single or in a tile. Neither the splits nor the order in which
/// they are merged depends on the number of workers, so results do not depend on it.
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

  /// Bytes of the results of all splits of a block, in whole cache lines, and of what merged() needs besides.
  Index bytes() const { return count_ * split_bytes_ + rows_ * kMostSplits * static_cast<Index>(sizeof(T)); }

  /// Stores the state of the recurrence after a split in the memory of its block.
  void store_partial(const TileState<T>& m, Index rows, Index split, std::byte* of_block) const {
    const TileMemory<T> to = at(of_block, split);
    std::copy_n(m.max, rows, to.max);
    std::copy_n(m.sum, rows, to.sum);
    std::copy_n(m.out, rows * v_dim_, to.out);
  }

  /// The state after all keys, merged from the splits' results, always in the order of the splits, whichever finished
  /// first. `layout`: that of the outputs. m.scores has space for a tile of them.
  TileMemory<T> merged(Index rows, std::byte* of_block, OutLayout layout = OutLayout::by_query) const {
    TileMemory<T> all = at(of_block, 0);
    all.scores = reinterpret_cast<T*>(of_block + count_ * split_bytes_);
    T* const factors = all.scores;  // (splits, rows)
    Array<const T*, kMostSplits> sums, outs;
    for (Index split = 0; split < count_; ++split)
      sums[split] = at(of_block, split).sum, outs[split] = at(of_block, split).out;
    for (Index r = 0; r < rows; ++r) {
      T max = all.max[r];
      for (Index split = 1; split < count_; ++split) max = std::max(max, at(of_block, split).max[r]);
      for (Index split = 0; split < count_; ++split)
        factors[split * rows + r] = SoftmaxState<T>::factor(at(of_block, split).max[r], max);
      all.max[r] = max;
    }
    // As in the sums over tiles, the parts of the sums lost to rounding are kept, so that the error does not grow with
    // the number of splits.
    const auto add_up = [&](const T* const* numbers, Index i, Index r) {
      T sum = 0, rest = 0;
      for (Index split = 0; split < count_; ++split)
        add_exactly(sum, rest, numbers[split][i] * factors[split * rows + r]);
      add_rest(sum, rest);
      return sum;
    };
    for (Index r = 0; r < rows; ++r) all.sum[r] = add_up(sums, r, r);
    const bool by_query = layout == OutLayout::by_query;
    const Index lines = by_query ? rows : v_dim_, line = by_query ? v_dim_ : rows;
    for (Index i = 0; i < lines; ++i)
      for (Index j = 0; j < line; ++j) all.out[i * line + j] = add_up(outs, i * line + j, by_query ? i : j);
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
  static_assert(kMostSplits >= kKeyTile, "factors and scores share their memory");

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
