// Tiles of keys and values as the kernels for single queries read them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Prefetches the keys or values that will be copied next while those of a tile are being copied: processors cannot
/// predict the order of gathered rows, and pages of a few tokens end before a pattern has been detected. Rows of pages
/// are prefetched twice, the second time during the products of the tile. On Zen 4, pages of 16 tokens with 32 query
/// heads, 8 key heads and head_dim 128 were read at 13 GB/s without prefetching, at 16 and 17 with one of the two
/// prefetches, and at 23 with both. On Zen 5, heads that share no keys took 1.14 times as long without the prefetches
/// of this class.
template <class T>
class RowsAhead {
 public:
  RowsAhead() = default;
  /// The gathered rows of a head: its data, and the list of rows.
  RowsAhead(const std::byte* data, const Index* list, Index stride, Index width, Index count)
      : data_(data), list_(list), stride_(stride), width_(width), count_(count) {}
  /// The rows of a head in pages.
  RowsAhead(const KvRows<T>& pages, Index batch, Index kv_head, const Range& keys)
      : pages_(&pages),
        batch_(batch),
        kv_head_(kv_head),
        keys_(keys),
        stride_(pages.stride(2) * pages.size_of_element()),
        width_(pages.dim(3) * pages.size_of_element()),
        count_(keys.size()) {}

  bool is_empty() const { return count_ == 0; }

  /// Prefetches the next row into L2, which supports more outstanding misses than L1: rows of 512 bytes were read 1.6
  /// times as fast. Inlined, because g++ 12 drops calls of a function that only prefetches.
  ATTN_INLINE void fetch() {
    if (!kPrefetches || count_ == 0) return;
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
  Index count_ = 0, left_ = 0;    // rows left in all, and in the current page
};

/// Tiles of keys and values. Kernels read them in place if the elements of a row are contiguous, whatever their type,
/// or if rows are column-major and hold T.
template <class T>
class DecodeTiles {
 public:
  /// `far`: whether keys and values may have to be read from memory.
  DecodeTiles(const CallTensors<T>& tensors, bool far) : tensors_(tensors), problem_(tensors.problem), far_(far) {}

  bool are_far() const { return far_; }

  /// Some keys of a head, and their values.
  struct KvTile {
    Index batch;
    Index kv_head;
    Range keys;
  };
  KvTile of(const QueryTile& queries, const Range& keys) const {
    return {queries.batch, problem_.kv_head(queries.head), keys};
  }

  /// The keys or the values of a tile. The tile must outlive them.
  struct TileRows {
    const KvRows<T>* of;
    const KvTile* tile;
  };
  TileRows keys_of(const KvTile& tile) const { return {&tensors_.k, &tile}; }
  TileRows values_of(const KvTile& tile) const { return {&tensors_.v, &tile}; }
  TileRows keys_of(KvTile&&) const = delete;
  TileRows values_of(KvTile&&) const = delete;

  /// first() returns the first tile of a range, and next() the tile after `tile`; they return steps of `keys` keys if
  /// `keys` is given. If keys are paged, all but the first begin at multiples of their length.
  Range first(const Range& all, Index keys = kKeyTile) const {
    const Index begin = tensors_.k.is_paged() ? all.begin / keys * keys : all.begin;
    return {all.begin, std::min(begin + keys, all.end)};
  }
  static Range next(const Range& tile, const Range& all, Index keys = kKeyTile) {
    return {tile.end, std::min(tile.end + keys, all.end)};
  }

  /// Whether neighbouring heads take turns. They do in pages, where a page's heads follow each other. They also do in
  /// far memory, if the heads of a token are closer together than the tokens of a head.
  bool interleaves_heads() const {
    return tensors_.k.has_several_pages() || (far_ && is_token_major(tensors_.k) && is_token_major(tensors_.v));
  }

  /// The key at which the next head takes its turn, if the keys of a head are read from `begin` on in steps of `step`.
  /// A turn always ends after whole steps. With pages, it ends with a page, or with a tile if pages split tiles. If the
  /// heads of a token are neighbours, it ends after one step.
  Index end_of_run(Index begin, Index step) const {
    if (!tensors_.k.is_paged()) return begin + step;
    const Index apart = is_token_major(tensors_.k)             ? 1
                        : tensors_.k.splits_tiles_of(kKeyTile) ? kKeyTile
                                                               : tensors_.k.page_size();
    const Index run = padded(apart, step);
    return (begin / run + 1) * run;
  }

  /// Whether whole tiles are copied.
  bool copies(const KvRows<T>& t) const { return copies(t, problem_.kv_len); }
  /// Whether this many queries read tiles in place, run by run, even if pages split them: 32 query heads that share 8
  /// key heads in pages of 16 tokens took 0.5 to 0.7 times as long as with copying. Pages must hold multiples of 16
  /// keys, so that runs are whole groups of the kernels. A single query never reads runs: it would sum values in an
  /// order that depends on where runs end, and results must not depend on pages.
  bool reads_runs(const KvRows<T>& t, Index queries) const {
    constexpr Index kGroup = 16;
    return queries > 1 && has_rows(t) && !t.is_gathered() && t.splits_tiles_of(kKeyTile) && t.page_size() % kGroup == 0;
  }
  /// Whether any tile may be copied, including a short one at the end.
  bool copies_any(const KvRows<T>& t) const { return copies(t, 1); }

  /// Whether keys and values are contiguous rows of T, neither gathered nor in several pages.
  bool are_contiguous_rows() const {
    const auto lies = [](const KvRows<T>& t) {
      return t.dtype() == DType::native && has_rows(t) && !t.is_gathered() && !t.has_several_pages();
    };
    return lies(tensors_.k) && lies(tensors_.v);
  }
  /// Whether each row of a head begins where the one before ends.
  bool are_packed() const {
    const auto lies = [](const KvRows<T>& t) { return t.stride(2) == t.dim(3); };
    return lies(tensors_.k) && lies(tensors_.v);
  }

  /// Whether the matrix unit can be used for whole tiles of keys. It reads rows that fill whole registers, aligned or
  /// not. A query that does not share its keys would leave most of it idle.
  bool suit_matrix_unit(const ChosenKernels<T>& kernels) const {
    const Format& format = kernels.family.format;
    const auto is_whole = [&](const KvRows<T>& t) {
      return t.dtype() == format.dtype && has_rows(t) && t.dim(3) % format.columns == 0;
    };
    return kernels.on_matrix_unit() && problem_.heads > problem_.kv_heads && is_whole(tensors_.k) &&
           is_whole(tensors_.v);
  }

  /// Whether kernels that multiply integers can be used.
  bool suit_dots(const ChosenKernels<T>& kernels) const {
    constexpr Index kLongest = 1 << 16;  // 32 bits hold sums of 2^17 products of two digits
    return kernels.dots && problem_.head_dim <= kLongest && problem_.head_dim % kernels.dots->columns == 0 &&
           problem_.v_dim % kernels.dots->columns == 0 && has_rows(tensors_.k) && has_rows(tensors_.v);
  }

  /// Rows as kernels read them: in place, or copied to `packed`. While `now` is copied, the rows `after` are prefetched
  /// if they will also be copied.
  RowsToRead rows(const KernelFamily<T>& family, TileRows now, TileRows after, T* packed) const {
    const KvTile& tile = *now.tile;
    if (!copies(*now.of, tile.keys.size())) return now.of->rows(tile.batch, tile.kv_head, tile.keys.begin);
    return copied(family, now, rows_ahead(after), packed);
  }

  /// Calls visit(rows, their range in the tile) for one contiguous run after the other.
  template <class Visit>
  static void for_each_run(TileRows rows, const Visit& visit) {
    const auto& [batch, kv_head, keys] = *rows.tile;
    for (Index begin = keys.begin, end; begin < keys.end; begin = end) {
      end = begin + rows.of->piece(begin, keys);
      visit(rows.of->rows(batch, kv_head, begin), Range{begin - keys.begin, end - keys.begin});
    }
  }

  /// Multiplies the scores of some queries by the scales of the keys, or their weights by the scales of the values.
  static void multiply_by_scales(TileRows rows, Index queries, const TileMemory<T>& m, const DotKernels<T>* dots) {
    const KvRows<T>& t = *rows.of;
    const KvTile& tile = *rows.tile;
    if (!t.is_scaled() || !has_rows(t)) return;
    const auto multiply = dots ? dots->multiply : multiply_each;
    for_each_run(rows, [&](const RowsToRead&, const Range& run) {
      const float* const scales = t.scales(tile.batch, tile.kv_head, tile.keys.begin + run.begin);
      for (Index r = 0; r < queries; ++r) multiply(m.scores + r * m.row + run.begin, scales, run.size());
    });
  }

  /// Makes `fetching` prefetch the keys and values of a tile. Prefetches nothing if the tile is in several pieces, or
  /// if keys are not far: prefetching lines that are already cached took half as long as the score product itself.
  void fetch(Prefetcher& fetching, const KvTile& tile) const {
    if (far_)
      fetching.to_l2<T>(ahead(tensors_.k, tile), problem_.head_dim, ahead(tensors_.v, tile), problem_.v_dim,
                        tile.keys.size());
  }

  /// Makes `fetching` prefetch the rows that are read during and after a product with the rows `now`: the rest of
  /// `now`, and the beginning of `after`. A step's first values follow its last keys, and the next step's keys follow
  /// its last values. Rows that are copied are prefetched whole, because they are read before they are multiplied. Rows
  /// that are read in runs took 1.4 to 1.7 times as long without prefetching, and up to 1.15 times as long with whole
  /// tiles prefetched to L2.
  void fetch(Prefetcher& fetching, TileRows now, TileRows after, bool in_runs) const {
    if (!far_) return;
    const KvRows<T>& t = *after.of;
    if (!has_rows(t) || !t.splits_tiles_of(kKeyTile) || t.is_gathered())
      return fetching.to_l1<T>(run_of(now), run_of(after));
    if (!in_runs) {
      fetching.forget();
      return add_runs(fetching, after, 0, kKeyTile);
    }
    const auto ahead = [](const KvRows<T>& rows) {
      return Prefetcher::rows_ahead(rows.dim(3) * rows.size_of_element());
    };
    fetching.to_l1_in_runs();
    add_runs(fetching, now, ahead(*now.of), kKeyTile);
    add_runs(fetching, after, 0, ahead(t));
  }

 private:
  static bool is_token_major(const KvRows<T>& t) {
    return !t.is_gathered() && t.dim(1) > 1 && std::abs(t.stride(1)) < std::abs(t.stride(2));
  }
  static bool has_rows(const KvRows<T>& t) { return t.stride(3) == 1 || t.dim(3) <= 1; }
  /// Whether a tile of this many keys is copied.
  bool copies(const KvRows<T>& t, Index keys) const {
    return !(has_rows(t) || (has_columns(t) && keys >= kFewestKeys)) || t.splits_tiles_of(kKeyTile);
  }
  /// Whether kernels can read these rows as columns. Kernels of other scores read one row after the other.
  bool has_columns(const KvRows<T>& t) const {
    return kHasVectors<T> && t.stride(2) == 1 && t.dtype() == DType::native && !t.is_paged() && !t.is_gathered() &&
           tensors_.score == nullptr;
  }

  RowsAhead<T> rows_ahead(TileRows rows) const {
    const KvRows<T>& t = *rows.of;
    const KvTile& tile = *rows.tile;
    if (!far_ || !has_rows(t) || !t.splits_tiles_of(kKeyTile)) return {};
    if (!t.is_gathered()) return {t, tile.batch, tile.kv_head, within_pages(t, tile).keys};
    const Range keys = intersect(tile.keys, {0, problem_.kv_len});
    return {t.DTypeView<const T>::rows(tile.batch, tile.kv_head).data, t.list(tile.batch, tile.kv_head) + keys.begin,
            t.stride(2) * t.size_of_element(), t.dim(3) * t.size_of_element(), keys.size()};
  }

  RowsToRead copied(const KernelFamily<T>& family, TileRows now, RowsAhead<T>&& ahead, T* packed) const {
    const KvRows<T>& t = *now.of;
    const KvTile& tile = *now.tile;
    const Index dim = t.dim(3);
    auto* const bytes = reinterpret_cast<std::byte*>(packed);
    if (!has_rows(t)) {
      pack_kv(family, t, tile.batch, tile.kv_head, tile.keys, packed);
      return {bytes, DType::native, dim, 1};
    }
    // Copied without conversion, so that the kernels compute the same wherever a page ends.
    const Index width = dim * t.size_of_element();
    if (t.is_gathered()) {
      const std::byte* const data = t.DTypeView<const T>::rows(tile.batch, tile.kv_head).data;
      const Index* const list = t.list(tile.batch, tile.kv_head) + tile.keys.begin;
      const Index count = intersect(tile.keys, {0, problem_.kv_len}).size(), stride = t.stride(2) * t.size_of_element();
      for (Index i = 0; i < count; ++i) {
        ahead.fetch();
        std::memcpy(bytes + i * width, data + list[i] * stride, static_cast<std::size_t>(width));
      }
      return {bytes, t.dtype(), dim, 1};
    }
    for_each_run(now, [&](const RowsToRead& from, const Range& run) {
      std::byte* const to = bytes + run.begin * width;
      const Index stride = from.stride * t.size_of_element();
      for (Index i = 0; i < run.size(); ++i)
        std::memcpy(to + i * width, from.data + i * stride, static_cast<std::size_t>(width));
      if (!ahead.is_empty())
        for (Index i = 0; i < run.size(); ++i) ahead.fetch();
    });
    return {bytes, t.dtype(), dim, 1};
  }

  /// numbers *= scales, for calls without DotKernels. Uses 16-byte vectors, which every program may use. A scalar loop,
  /// which compilers do not vectorise because the arrays might overlap, took a fifth of the time of a call with four
  /// queries per key.
  static void multiply_each(T* numbers, const float* scales, Index count) {
    Index j = 0;
    if constexpr (std::is_same_v<T, float>) {
      using V = Vec<float, 16>;
      for (; j + V::kLanes <= count; j += V::kLanes) (V::load(numbers + j) * V::load(scales + j)).store(numbers + j);
    }
    for (; j < count; ++j) numbers[j] *= static_cast<T>(scales[j]);
  }

  /// Makes `fetching` prefetch the rows `begin` .. `end - 1` of a tile, if they exist.
  void add_runs(Prefetcher& fetching, TileRows rows, Index begin, Index end) const {
    const KvRows<T>& t = *rows.of;
    KvTile tile = within_pages(t, *rows.tile);
    tile.keys = intersect(tile.keys, {rows.tile->keys.begin + begin, rows.tile->keys.begin + end});
    for_each_run({&t, &tile},
                 [&](const RowsToRead& run, const Range& keys) { fetching.add<T>(run, t.dim(3), keys.size()); });
  }
  KvTile within_pages(const KvRows<T>& t, const KvTile& tile) const {
    return {tile.batch, tile.kv_head, intersect(tile.keys, {0, std::min(problem_.kv_len, t.len_of_pages())})};
  }
  Prefetcher::Tile run_of(TileRows rows) const {
    return {ahead(*rows.of, *rows.tile), rows.tile->keys.size(), rows.of->dim(3)};
  }
  RowsToRead ahead(const KvRows<T>& t, const KvTile& tile) const {
    if (tile.keys.empty() || tile.keys.end > problem_.kv_len || !t.in_one_piece(tile.keys) || !has_rows(t))
      return {nullptr, DType::native, 0, 0};
    return t.rows(tile.batch, tile.kv_head, tile.keys.begin);
  }

  const CallTensors<T>& tensors_;
  const Problem& problem_;
  bool far_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
