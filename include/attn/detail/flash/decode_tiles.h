// Tiles of keys and values as the kernels for single queries read them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "attn/detail/flash/pass.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Keys or values that are copied after those of a tile, and fetched while those are: gathered ones come in no order
/// that a processor could foresee, and pages of a few tokens end before it has. Rows of pages are asked for twice, the
/// second time during the products of the tile: on Zen 4 pages of 16 tokens, 32 heads on 8, D = 128, came at 13 GB/s
/// without, at 16 and 17 with one of both, at 23 with both. On Zen 5, heads with keys of their own took 1.14 times as
/// long without this one.
template <class T>
class RowsAhead {
 public:
  RowsAhead() = default;
  /// Where the rows of a head lie that is gathered from, and which of them.
  RowsAhead(const std::byte* data, const Index* list, Index stride, Index width, Index count)
      : data_(data), list_(list), stride_(stride), width_(width), count_(count) {}
  /// Those of a head in pages.
  RowsAhead(const KvRows<T>& pages, Index batch, Index kv_head, const Range& keys)
      : pages_(&pages),
        batch_(batch),
        kv_head_(kv_head),
        keys_(keys),
        stride_(pages.stride(2) * pages.size_of_number()),
        width_(pages.dim(3) * pages.size_of_number()),
        count_(keys.size()) {}

  bool is_empty() const { return count_ == 0; }

  /// Asks for the next row. It goes to L2, which waits for more lines at a time than L1: rows of 512 bytes came 1.6
  /// times as fast. Inlined, or g++ 12 takes a function that only fetches for one that does nothing.
  ATTN_INLINE void fetch() {
    if (count_ == 0) return;
    --count_;
    const std::byte* const row = list_ != nullptr ? data_ + *list_++ * stride_ : next_of_pages();
    for (Index byte = 0; byte < width_; byte += kCacheLine) __builtin_prefetch(row + byte, 0, 2);
  }

 private:
  const std::byte* next_of_pages() {
    if (left_ == 0) {
      data_ = pages_->rows(batch_, kv_head_, keys_.begin).data;
      left_ = pages_->piece(keys_.begin, keys_);
      keys_.begin += left_;
    }
    --left_;
    return std::exchange(data_, data_ + stride_);
  }

  const KvRows<T>* pages_ = nullptr;
  Index batch_ = 0, kv_head_ = 0;
  Range keys_{0, 0};
  const std::byte* data_ = nullptr;
  const Index* list_ = nullptr;
  Index stride_ = 0, width_ = 0;  // bytes
  Index count_ = 0, left_ = 0;    // of all rows, of those in a page
};

/// Kernels read keys and values where they lie if the numbers of a row lie side by side, of any type, or if rows do, as
/// in a column-major matrix, and hold a T.
template <class T>
class DecodeTiles {
 public:
  /// `far`: whether keys and values may have to come from memory.
  DecodeTiles(const CallTensors<T>& tensors, bool far) : tensors_(tensors), problem_(tensors.problem), far_(far) {}

  bool are_far() const { return far_; }

  /// Some keys, and their values, of a head.
  struct Tile {
    Index batch;
    Index kv_head;
    Range keys;
  };
  Tile of(const QueryTile& queries, const Range& keys) const {
    return {queries.batch, problem_.kv_head(queries.head), keys};
  }

  /// The keys or the values of a tile, which must outlive them.
  struct TileRows {
    const KvRows<T>* of;
    const Tile* tile;
  };
  TileRows keys_of(const Tile& tile) const { return {&tensors_.k, &tile}; }
  TileRows values_of(const Tile& tile) const { return {&tensors_.v, &tile}; }
  TileRows keys_of(Tile&&) const = delete;
  TileRows values_of(Tile&&) const = delete;

  /// The tiles, or steps of so many keys, of a range: where keys lie in pages, they begin at multiples of their length.
  Range first(const Range& all, Index keys = kKeyTile) const {
    const Index begin = tensors_.k.is_paged() ? all.begin / keys * keys : all.begin;
    return {all.begin, std::min(begin + keys, all.end)};
  }
  static Range next(const Range& tile, const Range& all, Index keys = kKeyTile) {
    return {tile.end, std::min(tile.end + keys, all.end)};
  }

  /// Whether neighbouring heads take turns: in pages, where a page's heads follow each other, and in far memory where
  /// the heads of a token lie closer together than the tokens of a head.
  bool heads_take_turns() const {
    return tensors_.k.is_cut() || (far_ && lie_by_token(tensors_.k) && lie_by_token(tensors_.v));
  }

  /// Where the neighbouring head has its turn, if the keys of a head are read from `begin` on in steps of `step`: with
  /// the next page, or where pages cut tiles with the next tile, but after whole steps. Where the heads of a token lie
  /// together, after one step.
  Index end_of_run(Index begin, Index step) const {
    if (!tensors_.k.is_paged()) return begin + step;
    const Index apart = lie_by_token(tensors_.k)             ? 1
                        : tensors_.k.cuts_tiles_of(kKeyTile) ? kKeyTile
                                                             : tensors_.k.page_size();
    const Index run = padded(apart, step);
    return (begin / run + 1) * run;
  }

  /// Whether whole tiles are copied.
  bool copies(const KvRows<T>& t) const { return copies(t, problem_.kv_len); }
  /// Whether tiles that pages cut are read in place all the same, run by run, by so many queries: 32 heads on 8 over
  /// pages of 16 tokens took 0.5 to 0.7 of the time that copies took. Pages hold multiples of 16 keys, so that runs are
  /// whole groups of the kernels. A single query adds up values in an order that depends on where a run ends, and
  /// results must not depend on pages.
  bool reads_runs(const KvRows<T>& t, Index queries) const {
    constexpr Index kGroup = 16;
    return queries > 1 && has_rows(t) && !t.is_gathered() && t.cuts_tiles_of(kKeyTile) && t.page_size() % kGroup == 0;
  }
  /// Whether any tile may be copied, a short one at the end included.
  bool copies_any(const KvRows<T>& t) const { return copies(t, 1); }

  /// Whether the rows of every head lie in one piece, in the type that is computed in.
  bool lie_in_rows() const {
    const auto lies = [](const KvRows<T>& t) {
      return t.dtype() == DType::native && has_rows(t) && !t.is_gathered() && !t.is_cut();
    };
    return lies(tensors_.k) && lies(tensors_.v);
  }
  /// Whether each row of a head begins where the one before ends.
  bool lie_end_to_end() const {
    const auto lies = [](const KvRows<T>& t) { return t.stride(2) == t.dim(3); };
    return lies(tensors_.k) && lies(tensors_.v);
  }

  /// Whether the matrix unit serves for whole tiles of keys. It reads rows of whole registers at any address. A query
  /// that shares its keys with no other would leave most of it idle.
  bool suit_matrix_unit(const ChosenKernels<T>& kernels) const {
    const Format& format = kernels.family.format;
    const auto is_whole = [&](const KvRows<T>& t) {
      return t.dtype() == format.dtype && has_rows(t) && t.dim(3) % format.columns == 0;
    };
    return kernels.on_matrix_unit() && problem_.heads > problem_.kv_heads && is_whole(tensors_.k) &&
           is_whole(tensors_.v);
  }

  /// Whether kernels that multiply integers serve.
  bool suit_dots(const ChosenKernels<T>& kernels) const {
    constexpr Index kLongest = 1 << 16;  // 32 bits hold sums of 2^17 products of two digits
    return kernels.dots && problem_.head_dim <= kLongest && problem_.head_dim % kernels.dots->columns == 0 &&
           problem_.v_dim % kernels.dots->columns == 0 && has_rows(tensors_.k) && has_rows(tensors_.v);
  }

  /// Rows as kernels read them: where they lie, or copied to `packed`. What is copied after them is fetched while these
  /// are.
  RowsToRead rows(const KernelFamily<T>& family, TileRows now, TileRows after, T* packed) const {
    const Tile& tile = *now.tile;
    if (!copies(*now.of, tile.keys.size())) return now.of->rows(tile.batch, tile.kv_head, tile.keys.begin);
    return copied(family, now, rows_ahead(after), packed);
  }

  /// Calls visit(rows, their numbers in the tile) with those that lie in one piece, one piece after the other.
  template <class Visit>
  void for_each_run(TileRows tile, const Visit& visit) const {
    for_each_piece(*tile.of, *tile.tile, [&](Index first, Index count) {
      const Tile& t = *tile.tile;
      visit(tile.of->rows(t.batch, t.kv_head, t.keys.begin + first), Range{first, first + count});
    });
  }

  /// Multiplies the scores of some queries by the scales of their keys, or weights by those of values.
  void multiply_by_key_scales(const Tile& tile, Index queries, const TileMemory<T>& m,
                              const DotKernels<T>* dots) const {
    multiply_by_scales(tensors_.k, tile, queries, m, dots);
  }
  void multiply_by_value_scales(const Tile& tile, Index queries, const TileMemory<T>& m,
                                const DotKernels<T>* dots) const {
    multiply_by_scales(tensors_.v, tile, queries, m, dots);
  }

  /// `fetching` fetches the keys and values of a tile from now on; nothing if the tile lies in several pieces, or if
  /// nothing is far: asking for lines that are in the cache took half of the score product's time.
  void fetch(Prefetcher& fetching, const Tile& tile) const {
    if (far_)
      fetching.to_l2<T>(ahead(tensors_.k, tile), problem_.head_dim, ahead(tensors_.v, tile), problem_.v_dim,
                        tile.keys.size());
  }

  /// `fetching` fetches from now on what is read during and after a product with some rows: the rest of them and the
  /// first of those that come next. A step's first values follow its last keys, the next step's keys its last values.
  /// Rows that are copied are fetched as a whole, because that reads them before they are multiplied. Those that are
  /// read in runs took 1.4 to 1.7 times as long without fetching, and up to 1.15 times with whole tiles fetched to L2.
  void fetch(Prefetcher& fetching, TileRows now, TileRows after, bool in_runs) const {
    if (!far_) return;
    const KvRows<T>& t = *after.of;
    if (!has_rows(t) || !t.cuts_tiles_of(kKeyTile) || t.is_gathered())
      return fetching.to_l1<T>(run_of(now), run_of(after));
    if (!in_runs) {
      fetching.forget();
      return add_runs(fetching, after, 0, kKeyTile);
    }
    const auto ahead = [](const KvRows<T>& rows) {
      return Prefetcher::rows_ahead(rows.dim(3) * rows.size_of_number());
    };
    fetching.to_l1_in_runs();
    add_runs(fetching, now, ahead(*now.of), kKeyTile);
    add_runs(fetching, after, 0, ahead(t));
  }

 private:
  static bool lie_by_token(const KvRows<T>& t) {
    return !t.is_gathered() && t.dim(1) > 1 && std::abs(t.stride(1)) < std::abs(t.stride(2));
  }
  static bool has_rows(const KvRows<T>& t) { return t.stride(3) == 1 || t.dim(3) <= 1; }
  /// Whether a tile of so many keys is copied.
  bool copies(const KvRows<T>& t, Index keys) const {
    return !(has_rows(t) || (has_columns(t) && keys >= kFewestKeys)) || t.cuts_tiles_of(kKeyTile);
  }
  /// Whether rows lie side by side. Kernels of other scores read one row after the other.
  bool has_columns(const KvRows<T>& t) const {
    return kHasVectors<T> && t.stride(2) == 1 && t.dtype() == DType::native && !t.is_paged() && !t.is_gathered() &&
           tensors_.score == nullptr;
  }

  RowsAhead<T> rows_ahead(TileRows rows) const {
    const KvRows<T>& t = *rows.of;
    const Tile& tile = *rows.tile;
    if (!far_ || !has_rows(t) || !t.cuts_tiles_of(kKeyTile)) return {};
    if (!t.is_gathered()) return {t, tile.batch, tile.kv_head, within_pages(t, tile).keys};
    const Range keys = intersect(tile.keys, {0, problem_.kv_len});
    return {t.DTypeView<const T>::rows(tile.batch, tile.kv_head).data, t.list(tile.batch, tile.kv_head) + keys.begin,
            t.stride(2) * t.size_of_number(), t.dim(3) * t.size_of_number(), keys.size()};
  }

  RowsToRead copied(const KernelFamily<T>& family, TileRows now, RowsAhead<T>&& ahead, T* packed) const {
    const KvRows<T>& t = *now.of;
    const Tile& tile = *now.tile;
    const Index dim = t.dim(3);
    auto* const bytes = reinterpret_cast<std::byte*>(packed);
    if (!has_rows(t)) {
      pack_kv(family, t, tile.batch, tile.kv_head, tile.keys, packed);
      return {bytes, DType::native, dim, 1};
    }
    // Copied without conversion, so that the kernels compute the same wherever a page ends.
    const Index width = dim * t.size_of_number();
    if (t.is_gathered()) {
      const std::byte* const data = t.DTypeView<const T>::rows(tile.batch, tile.kv_head).data;
      const Index* const list = t.list(tile.batch, tile.kv_head) + tile.keys.begin;
      const Index count = intersect(tile.keys, {0, problem_.kv_len}).size(), stride = t.stride(2) * t.size_of_number();
      for (Index i = 0; i < count; ++i) {
        ahead.fetch();
        std::memcpy(bytes + i * width, data + list[i] * stride, static_cast<std::size_t>(width));
      }
      return {bytes, t.dtype(), dim, 1};
    }
    for_each_piece(t, tile, [&](Index first, Index count) {
      const RowsToRead from = t.rows(tile.batch, tile.kv_head, tile.keys.begin + first);
      std::byte* const to = bytes + first * width;
      const Index stride = from.stride * t.size_of_number();
      for (Index i = 0; i < count; ++i)
        std::memcpy(to + i * width, from.data + i * stride, static_cast<std::size_t>(width));
      if (!ahead.is_empty())
        for (Index i = 0; i < count; ++i) ahead.fetch();
    });
    return {bytes, t.dtype(), dim, 1};
  }

  static void multiply_by_scales(const KvRows<T>& t, const Tile& tile, Index queries, const TileMemory<T>& m,
                                 const DotKernels<T>* dots) {
    if (!t.is_scaled() || !has_rows(t)) return;
    const auto multiply = dots ? dots->multiply : multiply_each;
    for_each_piece(t, tile, [&](Index first, Index count) {
      const float* const scales = t.scales(tile.batch, tile.kv_head, tile.keys.begin + first);
      for (Index r = 0; r < queries; ++r) multiply(m.scores + r * m.row + first, scales, count);
    });
  }

  /// numbers *= scales where there are no DotKernels, with the vectors that every program has: a loop over numbers,
  /// which might overlap for all that compilers know, took a fifth of the time of a call with four queries a key.
  static void multiply_each(T* numbers, const float* scales, Index count) {
    Index j = 0;
    if constexpr (std::is_same_v<T, float>) {
      using V = Vec<float, 16>;
      for (; j + V::kLanes <= count; j += V::kLanes) (V::load(numbers + j) * V::load(scales + j)).store(numbers + j);
    }
    for (; j < count; ++j) numbers[j] *= static_cast<T>(scales[j]);
  }

  /// Calls visit(number of the first in the tile, how many) for keys that lie in one piece.
  template <class Visit>
  static void for_each_piece(const KvRows<T>& t, const Tile& tile, const Visit& visit) {
    for (Index j = tile.keys.begin; j < tile.keys.end;) {
      const Index count = t.piece(j, tile.keys);
      visit(j - tile.keys.begin, count);
      j += count;
    }
  }

  /// Adds what there is of a tile's rows from number `begin` to `end`.
  void add_runs(Prefetcher& fetching, TileRows rows, Index begin, Index end) const {
    const KvRows<T>& t = *rows.of;
    Tile tile = within_pages(t, *rows.tile);
    tile.keys = intersect(tile.keys, {rows.tile->keys.begin + begin, rows.tile->keys.begin + end});
    for_each_piece(t, tile, [&](Index first, Index count) {
      fetching.add<T>(t.rows(tile.batch, tile.kv_head, tile.keys.begin + first), t.dim(3), count);
    });
  }
  Tile within_pages(const KvRows<T>& t, const Tile& tile) const {
    return {tile.batch, tile.kv_head, intersect(tile.keys, {0, std::min(problem_.kv_len, t.len_of_pages())})};
  }
  Prefetcher::Tile run_of(TileRows rows) const {
    return {ahead(*rows.of, *rows.tile), rows.tile->keys.size(), rows.of->dim(3)};
  }
  RowsToRead ahead(const KvRows<T>& t, const Tile& tile) const {
    if (tile.keys.empty() || tile.keys.end > problem_.kv_len || !t.in_one_piece(tile.keys) || !has_rows(t))
      return {nullptr, DType::native, 0, 0};
    return t.rows(tile.batch, tile.kv_head, tile.keys.begin);
  }

  const CallTensors<T>& tensors_;
  const Problem& problem_;
  bool far_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
