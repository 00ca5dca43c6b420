// The keys of few single queries cut in parts, so that many workers can share them, and their results joined.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/detail/flash/pass_context.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Parts of the keys of blocks of up to `rows` queries. They are the same however many workers there are, and joined in the
/// same order, so that results are too.
template <class T>
class KvSplits {
 public:
  KvSplits(const Problem& problem, Index blocks, Index rows)
      : kv_len_(problem.kv_len), v_dim_(problem.v_dim), rows_(rows), count_(count_for(blocks)) {}

  Index count() const { return count_; }

  Range keys(Index part) const {
    const Index tiles = ceil_div(kv_len_, kKeyTile);
    return {tiles * part / count_ * kKeyTile, std::min(tiles * (part + 1) / count_ * kKeyTile, kv_len_)};
  }

  /// Bytes of what all parts of a block leave: whole cache lines.
  Index bytes() const { return count_ * part_bytes(); }

  /// Keeps the state of the recurrence after a part, in the room of its block.
  void store_partial(const TileMemory<T>& m, Index rows, Index part, std::byte* of_block) const {
    const TileMemory<T> to = at(of_block, part);
    std::copy_n(m.max, rows, to.max);
    std::copy_n(m.sum, rows, to.sum);
    std::copy_n(m.out, rows * v_dim_, to.out);
  }

  /// The state after all keys, from what the parts have left: always in this order, whoever came first.
  TileMemory<T> merged(Index rows, std::byte* of_block) const {
    const TileMemory<T> all = at(of_block, 0);
    Array<T, kMostParts> factor;
    for (Index r = 0; r < rows; ++r) {
      T max = all.max[r];
      for (Index part = 1; part < count_; ++part) max = std::max(max, at(of_block, part).max[r]);
      const T from = max == -PassContext<T>::kInfinity ? T(0) : max;
      for (Index part = 0; part < count_; ++part) factor[part] = std::exp(at(of_block, part).max[r] - from);
      all.max[r] = max;
      // As over tiles: what rounding takes from the sums is kept, so that the number of parts does not matter.
      const auto add_up = [&](T* TileMemory<T>::*numbers, Index i) {
        T sum = 0, rest = 0;
        for (Index part = 0; part < count_; ++part)
          add_exactly(sum, rest, (at(of_block, part).*numbers)[i] * factor[part]);
        add_rest(sum, rest);
        (all.*numbers)[i] = sum;
      };
      add_up(&TileMemory<T>::sum, r);
      for (Index c = 0; c < v_dim_; ++c) add_up(&TileMemory<T>::out, r * v_dim_ + c);
    }
    return all;
  }

 private:
  /// With few blocks there would be few tasks. Each part's result is joined, and which one a worker begins next, and should
  /// fetch, is but a guess: so they are not short.
  Index count_for(Index blocks) const {
    constexpr Index kLeastKeys = 16 * kKeyTile;
    return std::max<Index>(std::min(kMostParts / std::max<Index>(blocks, 1), kv_len_ / kLeastKeys), 1);
  }

  static constexpr Index kMostParts = 64;  ///< of all blocks together

  Index part_bytes() const { return padded(rows_ * (v_dim_ + 2) * static_cast<Index>(sizeof(T)), kAlignment); }
  TileMemory<T> at(std::byte* of_block, Index part) const {
    TileMemory<T> m{};
    m.max = reinterpret_cast<T*>(of_block + part * part_bytes());
    m.sum = m.max + rows_;
    m.out = m.sum + rows_;
    return m;
  }

  Index kv_len_, v_dim_, rows_, count_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
