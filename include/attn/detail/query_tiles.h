// Layer 2: how rows of queries are cut into tiles, and the memory that a tile works in.
#pragma once

#include <utility>

#include "attn/detail/kernel_set.h"
#include "attn/tensor.h"

namespace attn::detail {

/// With up to this many queries each goes by itself: a tile computes whole vectors of them, however few there are.
constexpr Index kFewQueries = 4;

/// How the queries of one head are cut into tiles: as few as possible, of nearly equal height, each a whole number of
/// vectors but the last.
template <class T>
class QueryTiles {
 public:
  QueryTiles(const KernelFamily<T>& kernels, Index q_len)
      : kernels_(kernels), q_len_(q_len), lanes_(q_len <= kFewQueries ? 1 : kernels.by_vectors[0].queries) {}

  Index count() const { return lanes_ == 1 ? q_len_ : (vectors() + kMaxVectors - 1) / kMaxVectors; }
  Range rows(Index tile) const {
    return {vectors() * tile / count() * lanes_, std::min(vectors() * (tile + 1) / count() * lanes_, q_len_)};
  }
  /// The kernels for a tile of so many rows.
  const KernelSet<T>& kernels(Index rows) const {
    return lanes_ == 1 ? kernels_.row : kernels_.by_vectors[(rows + lanes_ - 1) / lanes_ - 1];
  }
  Index most_queries() const { return lanes_ == 1 ? 1 : lanes_ * std::min<Index>(vectors(), kMaxVectors); }

 private:
  Index vectors() const { return (q_len_ + lanes_ - 1) / lanes_; }

  const KernelFamily<T>& kernels_;
  Index q_len_, lanes_;
};

/// The working memory of all workers of a call: one block, linear in head_dim + v_dim, independent of the lengths.
/// Keys and values that must be packed have `key_dim` and `value_dim` columns, others 0.
template <class T>
class TileWorkspace {
 public:
  TileWorkspace(int workers, Index queries, Index head_dim, Index v_dim, Index key_dim, Index value_dim)
      : queries_(queries),
        head_dim_(head_dim),
        v_rows_(padded_rows(v_dim)),
        key_dim_(key_dim),
        value_dim_(value_dim),
        memory_(Tensor<T, 2>::uninitialized({workers, size_per_worker()})) {}

  TileMemory<T> of(int worker) {
    T* next = memory_.data() + worker * size_per_worker();
    const auto take = [&](Index size) { return std::exchange(next, next + size); };
    TileMemory<T> m{};
    m.query = take(head_dim_ * queries_);
    m.scores = take(kKeyTile * queries_);
    m.out = take(v_rows_ * queries_);
    for (T** row : {&m.max, &m.sum, &m.tile_max, &m.rescale}) *row = take(queries_);
    m.packed_key = take(kKeyTile * key_dim_);
    m.packed_value = take(kKeyTile * value_dim_);
    m.dropped = reinterpret_cast<bool*>(next);
    return m;
  }

 private:
  // Rounded up to whole cache lines, so that two workers never write to the same one.
  Index size_per_worker() const {
    const Index flags = kKeyTile * queries_ / static_cast<Index>(sizeof(T)) + 1, line = 64;
    const Index numbers = queries_ * (head_dim_ + kKeyTile + v_rows_ + 4) + kKeyTile * (key_dim_ + value_dim_);
    return (numbers + flags + line - 1) / line * line;
  }

  Index queries_, head_dim_, v_rows_, key_dim_, value_dim_;
  Tensor<T, 2> memory_;
};

}  // namespace attn::detail
