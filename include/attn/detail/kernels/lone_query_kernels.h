// The attention of a single query from its first key to its last, for keys that need not be fetched ahead.
#pragma once

#include <algorithm>

#include "attn/detail/kernels/decode_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A query that shares its keys with no other, over keys and values that lie in one piece as they are computed with.
template <class T>
struct LoneQuery {
  const T* query;  ///< (head_dim)
  T scale;         ///< of the scores
  Rows<T> key;     ///< (keys, head_dim)
  Rows<T> value;   ///< (keys, v_dim)
  Index keys, head_dim, v_dim;
  bool are_near;  ///< keys and values lie in a cache
  Index begin;    ///< how many keys of its step and tile come before the first one
  T* result;      ///< (v_dim): the output divided by the sum; null: it stays in TileMemory::out, not yet divided
};

/// What the loop over single queries does with its other kernels, in the same order and to the same bits, without what
/// lies between these: steps of kLongStep keys, each scored, then its softmax, then its values tile by tile. Nothing is
/// fetched ahead.
///
/// kScore: DecodeKernels::score of the same vectors, for far keys and what DecodeRowKernels::score() does not take. It
/// is a function of its own, because it is the longest kernel: with one more of it a call took 5 % longer to compile.
/// Without DecodeRowKernels::score() 8 heads of 64 keys took 1.03 to 1.1 times as long.
template <class T, int Bytes, int kRegisters, decltype(DecodeProducts<T>::score) kScore>
struct LoneQueryKernels {
  using V = Vec<T, Bytes>;
  using Decode = DecodeKernels<T, Bytes, kRegisters>;
  using Row = DecodeRowKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = V::kLanes;

  /// Rows of a multiple of so many numbers are read nearly in the order of memory, by few instructions, so that what
  /// the processor fetches by itself is in time: on Zen 5 rows of 64, 128, 256, 512 and 1024 floats came from memory at
  /// 0.94, 0.95, 0.91, 0.86 and 0.76 of the speed of reading, in DecodeLoop with prefetches at 0.83, 0.95, 0.71, 0.57
  /// and 0.51. Other rows of whole vectors ran as fast either way, and narrower vectors, which take more instructions,
  /// at 0.4 to 0.9 of DecodeLoop's speed.
  static constexpr Index kFarColumns = Bytes == 64 ? 4 * kLanes : 0;

  /// Maximum and sum stand in `memory` as they are before these keys. Reads and writes no other row than the first.
  static ATTN_INLINE void attend(const TileMemory<T>& memory, const LoneQuery<T>& a) {
    // A copy, which no store of a vector can have changed: the compiler need not read it again. With one of `a` as well
    // g++ 12 had too few registers, and read the stride of keys from memory for each of them: 1000 keys took 1.17 times
    // as long.
    TileMemory<T> m = memory;
    Prefetcher empty;
    NoPrefetcher nothing;
    m.row = 0;
    multiply(m.query, a.query, a.head_dim, a.scale);
    std::fill_n(m.out, a.v_dim, T(0));
    const T *key = a.key.data, *value = a.value.data;
    for (Index left = a.keys, from = a.begin; left > 0; from = 0) {
      const Index step = std::min(left, kLongStep - from);
      const RowsToRead keys{reinterpret_cast<const std::byte*>(key), DType::native, a.key.stride, 1};
      bool is_scored = false;
      if constexpr (kLanes > 1) is_scored = a.are_near && Row::score(m, keys, step, a.head_dim, nothing);
      if (!is_scored) kScore(m, 1, keys, step, a.head_dim, empty);
      Decode::softmax(m, 0, step, nothing);
      TileMemory<T> tile = m;
      for (Index done = 0, count = kKeyTile - from % kKeyTile; done < step; count = kKeyTile) {
        count = std::min(count, step - done);
        Row::value(tile, value, a.value.stride, count, a.v_dim, nothing);
        tile.scores += count;
        value += count * a.value.stride;
        *tile.rescale = 1;
        done += count;
      }
      key += step * a.key.stride;
      left -= step;
    }
    add_rest(*m.sum, *m.sum_rest);
    if (a.result != nullptr) multiply(a.result, m.out, a.v_dim, *m.sum == T(0) ? T(0) : T(1) / *m.sum);
  }

 private:
  static ATTN_INLINE void multiply(T* to, const T* from, Index size, T factor) {
    Index i = 0;
    for (; i + kLanes <= size; i += kLanes) (V::load(from + i) * factor).store(to + i);
    for (; i < size; ++i) to[i] = from[i] * factor;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
