// Layer 2: how rows of queries are cut into tiles, and the memory that a tile works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "attn/detail/kernel_set.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How the queries of one head are cut into tiles: as few as possible, of nearly equal height, each a whole number of
/// vectors but the last.
template <class T>
class QueryTiles {
 public:
  /// Up to `few` queries go each by itself: a tile computes whole vectors of them, however few there are.
  QueryTiles(const KernelFamily<T>& kernels, Index q_len, Index few)
      : kernels_(kernels), q_len_(q_len), lanes_(q_len <= few ? 1 : kernels.by_vectors[0].queries) {}

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

/// How the working memory of a tile is laid out: linear in head_dim + v_dim, independent of the lengths. Keys and values
/// that must be packed have `key_dim` and `value_dim` columns, others 0.
template <class T>
struct TileLayout {
  Index queries;
  Index head_dim;
  Index v_dim;
  Index key_dim;
  Index value_dim;

  /// Bytes for one worker, whole cache lines, so that two workers never write to the same one.
  Index bytes() const {
    const Index numbers = queries * (head_dim + kKeyTile + padded_rows(v_dim) + 4) + kKeyTile * (key_dim + value_dim);
    const Index flags = kKeyTile * queries;
    return (numbers * static_cast<Index>(sizeof(T)) + flags + kAlignment - 1) / kAlignment * kAlignment;
  }

  TileMemory<T> at(std::byte* memory) const {
    T* next = reinterpret_cast<T*>(memory);
    const auto take = [&](Index size) { return std::exchange(next, next + size); };
    TileMemory<T> m{};
    m.query = take(head_dim * queries);
    m.scores = take(kKeyTile * queries);
    m.out = take(padded_rows(v_dim) * queries);
    for (T** row : {&m.max, &m.sum, &m.tile_max, &m.rescale}) *row = take(queries);
    m.packed_key = take(kKeyTile * key_dim);
    m.packed_value = take(kKeyTile * value_dim);
    m.dropped = reinterpret_cast<bool*>(next);
    return m;
  }
};

/// The caller's memory from its first cache line on. @throws std::invalid_argument if it has fewer than `need` bytes, of
/// which kAlignment - 1 may be lost in front.
inline std::span<std::byte> checked_workspace(std::span<std::byte> given, Index need) {
  const Index have = static_cast<Index>(given.size());
  require(have >= need, "the workspace has ", have, " bytes, the call needs ", need,
          " with this executor; see workspace_bytes()");
  const auto address = reinterpret_cast<std::uintptr_t>(given.data());
  return given.subspan((kAlignment - address % kAlignment) % kAlignment);
}

/// The working memory of all workers of a call, the caller's or allocated here.
template <class T>
class TileWorkspace {
 public:
  /// What a caller's memory of any alignment must have.
  static Index bytes(const TileLayout<T>& layout, int workers) { return workers * layout.bytes() + kAlignment - 1; }

  TileWorkspace(const TileLayout<T>& layout, int workers, std::span<std::byte> given = {}) : layout_(layout) {
    require(workers > 0, "the executor has ", workers, " workers; there must be at least one, the caller");
    if (given.data() == nullptr) {
      own_ = Tensor<std::byte, 1>::uninitialized({workers * layout.bytes()});
      first_ = own_.data();
      return;
    }
    first_ = checked_workspace(given, bytes(layout, workers)).data();
  }

  TileMemory<T> of(int worker) const { return layout_.at(first_ + worker * layout_.bytes()); }

 private:
  TileLayout<T> layout_;
  Tensor<std::byte, 1> own_;
  std::byte* first_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
