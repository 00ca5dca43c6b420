// Fetches rows of keys and values from memory while others are worked on.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/detail/base/cpu.h"
#include "attn/detail/base/ranges.h"
#include "attn/detail/simd/vec.h"
#include "attn/detail/tensor/dtype_view.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Fetches rows, a cache line at a time, in the order of memory, because what the processor fetches by itself follows
/// rising addresses. Kernels spread the prefetches evenly, because memory idles if nothing is requested for 0.1 µs:
/// without prefetches during the softmax, decoding took 8 % longer. It is told anew what to fetch for each tile, in
/// place: to make and copy one took 4 to 8 % of the time of four queries over far keys of 16 bits.
class Prefetcher {
 public:
  /// Fetches nothing, or to L2 what add() gives.
  Prefetcher() = default;

  /// From now on to L2: `rows` rows of keys, and then of values; the sizes of a row are in numbers of a T. Rows without
  /// data are not fetched.
  template <class T>
  void to_l2(const RowsToRead& key, Index head_dim, const RowsToRead& value, Index v_dim, Index rows) {
    forget();
    add<T>(key, head_dim, rows);
    score_lines_ = lines_left();
    add<T>(value, v_dim, rows);
  }

  /// Rows that are read from their begin to their end.
  struct Tile {
    RowsToRead rows;
    Index count, dim;
  };

  /// From now on to L1, during the work on a tile: what is read kAhead bytes later, the rest of the tile and the begin
  /// of the one that is read after it. L1 holds 16 KiB of them beside the queries and scores, but not 32. On Zen 5,
  /// whose memory one core reads at 41 GB/s, tiles of 16 KiB came at 34 GB/s if they were fetched to L2, and at 37 to
  /// L1; of 32 KiB, for four queries, at 31 to L2, 26 to L1, and 38 in this way. Only 4 or 8 KiB ahead everything was
  /// slower.
  template <class T>
  void to_l1(const Tile& tile, const Tile& next) {
    forget();
    to_l1_ = true;
    const Index begun = rows_ahead<T>(tile);
    RowsToRead rest = tile.rows;
    if (rest.data != nullptr) rest.data += begun * rest.stride * size_of_number<T>(rest.dtype);
    add<T>(rest, tile.dim, tile.count - begun);
    add<T>(next.rows, next.dim, rows_ahead<T>(next));
  }

  /// The same for tiles in several runs, which are added.
  void to_l1_in_runs() {
    forget();
    to_l1_ = true;
  }
  /// How many rows of so many bytes are fetched ahead.
  static Index rows_ahead(Index width) { return std::max<Index>(kAhead / std::max<Index>(width, 1), 1); }

  void forget() {
    count_ = 0;
    to_l1_ = false;
    score_lines_ = -1;
    next_ = end_ = nullptr;
    wait_ = kNever;
  }

  /// Fetches `count` more rows, if there is room for that.
  template <class T>
  void add(const RowsToRead& rows, Index dim, Index count) {
    if (count_ == kMostRuns || rows.data == nullptr || dim <= 0 || count <= 0) return;
    runs_[count_++] = run<T>(rows, dim, count);
    if (count_ == 1) begin(0);
  }

  bool is_empty() const { return next_ == nullptr; }

  /// From now on step() asks for so many lines, evenly, while so many bytes are read; never for more lines than those
  /// bytes fill.
  ATTN_INLINE void spread(Index lines, Index bytes) {
    if (lines <= 0) return;
    per_line_ = std::max(bytes / lines, kLine);
    wait_ = 0;
  }
  /// Called before kBytes are read: asks for the lines that are due by then. Kernels call it once for a few rows: as it
  /// is inlined at each call, a call of attention took 1.4 times as long to compile with one for each vector that is
  /// loaded.
  template <Index kBytes>
  ATTN_INLINE void step() {
    constexpr int kLines = static_cast<int>(std::max<Index>(kBytes / kLine, 1));
    wait_ -= kBytes;
    if (wait_ >= 0) return;
    wait_ += per_line_ * kLines;
    lines<kLines>();
  }
  /// Asks for some lines. Where a row goes on for all of them, a few take an instruction each: a loop stood in the way
  /// of the loads beside it, and made decoding 10 % slower.
  template <int kLines>
  ATTN_INLINE void lines() {
    const std::byte* const at = next_;
    if (at == nullptr) return;
    constexpr int kFew = 4;  // a row of 64 floats
    if (kLines > kFew || end_ - at < kLines * kLine) return one_by_one(kLines);
    next_ = at + kLines * kLine;
    if (to_l1_) {
      ATTN_UNROLL for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine, 0, 3);
    } else {
      ATTN_UNROLL for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine, 0, 2);
    }
  }

  /// The lines that the score product fetches, and all lines that are left.
  Index score_lines() const { return score_lines_ >= 0 ? score_lines_ : lines_left(); }
  Index lines_left() const {
    if (count_ == 0) return 0;
    Index lines = (end_ - next_) / kLine + std::max<Index>(rows_ - 1, 0) * runs_[number_].row_lines;
    for (int i = number_ + 1; i < count_; ++i) lines += runs_[i].lines();
    return lines;
  }

 private:
  static constexpr Index kLine = kCacheLine;
  static constexpr Index kNever = std::numeric_limits<Index>::max();
  static constexpr Index kAhead = 16 * 1024;  // bytes; see to_l1()

  struct Run {
    const std::byte* data;
    Index stride, row_lines, rows;
    Index lines() const { return row_lines * rows; }
  };
  template <class T>
  static Run run(const RowsToRead& rows, Index dim, Index count) {
    const Index size = size_of_number<T>(rows.dtype), stride = rows.stride * size, width = dim * size;
    if (stride == width) return {rows.data, 0, ceil_div(count * width, kLine), 1};
    return {rows.data, stride, ceil_div(width, kLine), count};
  }

  template <class T>
  static Index rows_ahead(const Tile& tile) {
    return std::min(tile.count, rows_ahead(tile.dim * size_of_number<T>(tile.rows.dtype)));
  }

  void begin(int number) {
    number_ = number;
    row_ = next_ = runs_[number].data;
    rows_ = runs_[number].rows;
    end_ = next_ + runs_[number].row_lines * kLine;
  }

  ATTN_INLINE void one_by_one(int lines) {
    ATTN_NO_UNROLL for (; lines > 0; --lines) {
      if (next_ == end_ && !next_row()) return;
      if (to_l1_)
        __builtin_prefetch(next_, 0, 3);
      else
        __builtin_prefetch(next_, 0, 2);
      next_ += kLine;
    }
  }
  /// Goes on to the next row. Returns whether there is one.
  ATTN_INLINE bool next_row() {
    if (--rows_ > 0) {
      row_ += runs_[number_].stride;
      next_ = row_;
      end_ = row_ + runs_[number_].row_lines * kLine;
    } else if (number_ + 1 < count_) {
      begin(number_ + 1);
    } else {
      forget();
    }
    return next_ != nullptr;
  }

  // Two tiles in pages of 16 tokens, the fewest that are usual: the rest of a tile of wide rows, and all of the next
  // one, whose rows are narrow. With four, rows of 80, 96 and 192 floats in such pages took 1.1 to 1.3 times as long
  // from memory.
  static constexpr int kMostRuns = 8;
  Run runs_[kMostRuns];  ///< not initialised: one is made for each step of each head
  bool to_l1_ = false;
  int number_ = 0, count_ = 0;
  Index score_lines_ = -1;  ///< -1: all
  const std::byte* row_ = nullptr;
  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;  ///< where the row ends
  Index rows_ = 0;
  Index per_line_ = 0, wait_ = kNever;  ///< bytes that are read from line to line, and until the next one
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
