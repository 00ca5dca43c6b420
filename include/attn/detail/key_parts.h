// Layer 3: the keys of few single queries cut in parts, so that many workers can share them, and their results joined.
#pragma once

#include <algorithm>
#include <cmath>

#include "attn/detail/flash_pass.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Parts of the keys of blocks of up to `rows` queries. They are the same however many workers there are, and joined in the
/// same order, so that results are too.
template <class T>
class KeyParts {
 public:
  KeyParts(const Problem& problem, Index blocks, Index rows)
      : kv_len_(problem.kv_len), v_dim_(problem.v_dim), rows_(rows), count_(count_for(blocks)) {}

  Index count() const { return count_; }

  Range keys(Index part) const {
    const Index tiles = (kv_len_ + kKeyTile - 1) / kKeyTile;
    return {tiles * part / count_ * kKeyTile, std::min(tiles * (part + 1) / count_ * kKeyTile, kv_len_)};
  }

  /// Bytes of what all parts of a block leave: whole cache lines.
  Index bytes() const { return count_ * part_bytes(); }

  /// Keeps the state of the recurrence after a part, in the room of its block.
  void leave(const TileMemory<T>& m, Index rows, Index part, std::byte* of_block) const {
    const TileMemory<T> to = at(of_block, part);
    std::copy_n(m.max, rows, to.max);
    std::copy_n(m.sum, rows, to.sum);
    std::copy_n(m.out, rows * v_dim_, to.out);
  }

  /// The state after all keys, from what the parts have left: always in this order, whoever came first.
  TileMemory<T> joined(Index rows, std::byte* of_block) const {
    const TileMemory<T> all = at(of_block, 0);
    for (Index r = 0; r < rows; ++r)
      for (Index part = 1; part < count_; ++part) {
        const TileMemory<T> more = at(of_block, part);
        const T max = all.max[r] > more.max[r] ? all.max[r] : more.max[r];
        const T from = max == -FlashPass<T>::kInfinity ? T(0) : max;
        const T factor = std::exp(all.max[r] - from), factor_of_more = std::exp(more.max[r] - from);
        all.max[r] = max;
        all.sum[r] = all.sum[r] * factor + more.sum[r] * factor_of_more;
        T* const out = all.out + r * v_dim_;
        for (Index c = 0; c < v_dim_; ++c) out[c] = out[c] * factor + more.out[r * v_dim_ + c] * factor_of_more;
      }
    return all;
  }

 private:
  /// With few blocks there would be few tasks. Each part's result is joined, and which one a worker begins next, and should
  /// fetch, is but a guess: so they are not short.
  Index count_for(Index blocks) const {
    constexpr Index kTasks = 64, kLeastKeys = 16 * kKeyTile;
    return std::max<Index>(std::min(kTasks / std::max<Index>(blocks, 1), kv_len_ / kLeastKeys), 1);
  }

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
