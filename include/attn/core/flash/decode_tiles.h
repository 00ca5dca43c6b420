// Tiles of keys and values as the kernels for single queries read them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
  /// `keys` is given. If keys are paged, as those of all caches are, all but the first begin at multiples of their
  /// length.
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
  /// Elements of type T that a row takes in a copy; 0 if no tile may be copied, not even a short one at the end.
  Index size_of_copied(const KvRows<T>& t) const {
    const Index size = static_cast<Index>(sizeof(T));
    return copies(t, 1) ? std::max(t.dim(3), ceil_div(t.size_of_row(), size)) : 0;  // converted or not
  }

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
  static bool suit_matrix_unit(const PassContext<T>& pass) {
    const Format& format = pass.kernels.family.format;
    const auto is_whole = [&](const KvRows<T>& t) {
      return t.dtype() == format.dtype && has_rows(t) && t.dim(3) % format.columns == 0;
    };
    return pass.kernels.on_matrix_unit() && pass.problem().heads > pass.problem().kv_heads &&
           is_whole(pass.tensors.k) && is_whole(pass.tensors.v);
  }

  /// Whether kernels that multiply integers can be used.
  bool suit_dots(const ChosenKernels<T>& kernels) const {
    constexpr Index kLongest = 1 << 16;  // 32 bits hold sums of 2^17 products of two digits
    return kernels.dots && problem_.head_dim <= kLongest && problem_.head_dim % kernels.dots->columns == 0 &&
           problem_.v_dim % kernels.dots->columns == 0 && has_rows(tensors_.k) && has_rows(tensors_.v);
  }

  /// Rows as kernels read them: in place, or copied to `packed`. While `now` is copied, the rows `after` are prefetched
  /// if they will also be copied.
  RowsToRead rows(const KernelFamily<T>& family, TileRows now, TileRows after, T* packed, Prefetcher& fetching) const {
    const KvTile& tile = *now.tile;
    if (!copies(*now.of, tile.keys.size())) return now.of->rows(tile.batch, tile.kv_head, tile.keys.begin);
    return copied(family, now, after, packed, fetching);
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

  /// Makes `fetching` prefetch the keys and values of a tile if keys are far: prefetching lines that are already cached
  /// took half as long as the score product itself.
  void fetch(Prefetcher& fetching, const KvTile& tile) const {
    if (!far_) return;
    fetching.restart(false);
    add_rows(fetching, keys_of(tile), 0, kKeyTile);
    fetching.end_score();
    add_rows(fetching, values_of(tile), 0, kKeyTile);
  }

  /// Makes `fetching` prefetch the rows that are read during and after a product with the rows `now`: the rest of
  /// `now`, and the beginning of `after`. A step's first values follow its last keys, and the next step's keys follow
  /// its last values. Rows that are copied are prefetched whole, because they are read before they are multiplied. Rows
  /// that are read in runs took 1.4 to 1.7 times as long without prefetching, and up to 1.15 times as long with whole
  /// tiles prefetched to L2.
  void fetch(Prefetcher& fetching, TileRows now, TileRows after, bool in_runs) const {
    if (!far_) return;
    const auto ahead = [](const KvRows<T>& t) { return Prefetcher::rows_ahead(t.size_of_row()); };
    const bool in_place = in_runs || !copies(*after.of);
    fetching.restart(in_place);
    if (in_place) add_rows(fetching, now, ahead(*now.of), kKeyTile);
    add_rows(fetching, after, 0, in_place ? ahead(*after.of) : kKeyTile);
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

  /// The rows that a tile lists, one by one. Lists of keys that are far apart have no runs worth looking for.
  struct ListedRows {
    const std::byte* data;
    const Index* list;
    Index count, stride, width;  ///< stride, width and page in bytes
    Pages pages;
    Index page;

    const std::byte* at(Index i) const {
      if (pages.table == nullptr) return data + list[i] * stride;
      const Division place = divide(list[i], pages.size);
      return data + pages.table[place.quotient] * page + place.remainder * stride;
    }
    /// Prefetches row i into L2, which supports more outstanding misses than L1: rows of 512 bytes were read 1.6 times
    /// as fast. Inlined, because g++ 12 drops calls of a function that only prefetches.
    ATTN_INLINE void fetch(Index i) const {
      for (Index byte = 0; byte < width; byte += kCacheLine) __builtin_prefetch(at(i) + byte, 0, 2);
    }
  };
  ListedRows listed(TileRows rows) const {
    const KvRows<T>& t = *rows.of;
    const auto& [batch, kv_head, keys] = *rows.tile;
    return {t.DTypeView<const T>::rows(t.is_paged() ? 0 : batch, kv_head).data,
            t.list(batch, kv_head) + keys.begin,
            intersect(keys, {0, problem_.kv_len}).size(),
            size_of_elements<T>(t.dtype(), t.stride(2)),
            t.size_of_row(),
            t.pages(),
            size_of_elements<T>(t.dtype(), t.stride(0))};
  }
  bool copies_listed(const KvRows<T>& t) const { return t.is_gathered() && has_rows(t) && copies(t); }

  RowsToRead copied(const KernelFamily<T>& family, TileRows now, TileRows after, T* packed,
                    Prefetcher& fetching) const {
    const KvRows<T>& t = *now.of;
    const KvTile& tile = *now.tile;
    const Index dim = t.dim(3);
    auto* const bytes = reinterpret_cast<std::byte*>(packed);
    if (!has_rows(t)) {
      pack_kv(family, t, tile.batch, tile.kv_head, tile.keys, packed);
      return {bytes, DType::native, dim, 1};
    }
    // Copied without conversion, so that the kernels compute the same wherever a page ends.
    const Index width = t.size_of_row(), stride = padded(dim, elements_of_block(t.dtype()));
    if (t.is_gathered()) {
      // Processors cannot predict the order of listed rows, so each copy is preceded by the prefetch of a row that is
      // copied a tile later. Rows by runs, as below, took 1.5 to 3 times as long.
      const ListedRows from = listed(now), next = far_ && copies_listed(*after.of) ? listed(after) : ListedRows{};
      for (Index i = 0; i < from.count; ++i) {
        if (kPrefetches && i < next.count) next.fetch(i);
        std::memcpy(bytes + i * width, from.at(i), static_cast<std::size_t>(width));
      }
      return {bytes, t.dtype(), stride, 1};
    }
    for_each_run(now, [&](const RowsToRead& from, const Range& run) {
      const Index step = size_of_elements<T>(t.dtype(), from.stride);
      for (Index i = 0; i < run.size(); ++i) {
        fetching.lines(ceil_div(width, kCacheLine));
        std::memcpy(bytes + (run.begin + i) * width, from.data + i * step, static_cast<std::size_t>(width));
      }
    });
    return {bytes, t.dtype(), stride, 1};
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

  /// Makes `fetching` prefetch the rows `begin` .. `end - 1` of a tile, if they exist. copied() prefetches listed rows.
  void add_rows(Prefetcher& fetching, TileRows rows, Index begin, Index end) const {
    const KvRows<T>& t = *rows.of;
    const auto& [batch, kv_head, keys] = *rows.tile;
    if (!has_rows(t) || copies_listed(t)) return;
    const KvTile tile{batch, kv_head, existing(t, intersect(keys, {keys.begin + begin, keys.begin + end}))};
    for_each_run({&t, &tile},
                 [&](const RowsToRead& run, const Range& of) { fetching.add<T>(run, t.dim(3), of.size()); });
  }
  Range existing(const KvRows<T>& t, const Range& keys) const {
    return intersect(keys, {0, t.is_paged() ? std::min(problem_.kv_len, t.len_of_pages()) : problem_.kv_len});
  }

  const CallTensors<T>& tensors_;
  const Problem& problem_;
  bool far_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
