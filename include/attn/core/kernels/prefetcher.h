// Prefetches rows of keys and values while others are processed.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/base/cpu.h"
#include "attn/core/base/ranges.h"
#include "attn/core/simd/vec.h"
#include "attn/core/tensor/dtype_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Prefetches rows, a cache line at a time, in memory order, because the hardware prefetcher follows rising addresses.
/// Kernels spread the prefetches evenly, because memory idles if nothing is requested for 0.1 µs: without prefetches
/// during the softmax, decoding took 8 % longer. A prefetcher is set up for each tile in place: constructing and
/// copying one took 4 to 8 % of the time of four queries over 16-bit keys from memory.
class Prefetcher {
 public:
  /// Prefetches nothing until add(), whose rows are prefetched into L2.
  Prefetcher() {}  // NOLINT: not defaulted, because Prefetcher{} would then clear all runs

  /// Forgets all rows. The rows that are added from now on are prefetched into L1 or into L2.
  void restart(bool to_l1) {
    count_ = 0;
    to_l1_ = to_l1;
    score_lines_ = -1;
    next_ = end_ = nullptr;
    wait_ = kNever;
  }

  /// Number of rows of `width` bytes to prefetch into L1 ahead of those that are read: 16 KiB, which L1 holds beside
  /// the queries and scores; it does not hold 32. On Zen 5, where one core reads memory at 41 GB/s, tiles of 16 KiB
  /// were read at 34 GB/s when prefetched into L2, and at 37 when prefetched into L1. Tiles of 32 KiB, for four
  /// queries, were read at 31 GB/s when prefetched into L2, at 26 when prefetched whole into L1, and at 38 when
  /// prefetched 16 KiB ahead. With only 4 or 8 KiB ahead, everything was slower.
  static Index rows_ahead(Index width) { return std::max<Index>(16 * 1024 / std::max<Index>(width, 1), 1); }

  /// Prefetches `count` more rows of `dim` elements, unless there are too many runs, or the rows have no data.
  template <class T>
  void add(const RowsToRead& rows, Index dim, Index count) {
    if (!kPrefetches || count_ == kMostRuns || rows.data == nullptr || dim <= 0 || count <= 0) return;
    runs_[count_++] = run<T>(rows, dim, count);
    if (count_ == 1) begin(0);
  }
  /// The score product prefetches the rows added so far, and later kernels those that follow.
  void end_score() { score_lines_ = lines_left(); }

  bool is_empty() const { return !kPrefetches || next_ == nullptr; }

  /// Makes step() prefetch `lines` lines evenly while `bytes` bytes are read, but never more lines than those bytes
  /// fill.
  ATTN_INLINE void spread(Index lines, Index bytes) {
    if (lines <= 0) return;
    per_line_ = std::max(bytes / lines, kLine);
    wait_ = 0;
  }
  /// Prefetches the lines that are due before kBytes are read. Kernels call it once for a few rows: it is inlined at
  /// each call, and with a call for each loaded vector, attention took 1.4 times as long to compile.
  template <Index kBytes>
  ATTN_INLINE void step() {
    if (!kPrefetches) return;
    constexpr int kLines = static_cast<int>(std::max<Index>(kBytes / kLine, 1));
    wait_ -= kBytes;
    if (wait_ >= 0) return;
    wait_ += per_line_ * kLines;
    lines<kLines>();
  }
  /// Prefetches kLines lines. If there are few and all are in one row, there is no loop, just an instruction for each:
  /// a loop delayed the loads around it and made decoding 10 % slower.
  ///
  /// Tried (Zen 3, AVX2): one_by_one() as a cold function. A call then took 0.77 of the compile time with g++ 12, and
  /// decoding over contiguous rows 0.92 of the time, but over halves of 256 bytes with gaps 1.15 times as long. As an
  /// ordinary function, it changed neither.
  template <int kLines>
  ATTN_INLINE void lines() {
    const std::byte* const at = next_;
    if (!kPrefetches || at == nullptr) return;
    constexpr int kFew = 4;  // a row of 64 floats
    if (kLines > kFew || end_ - at < kLines * kLine) return one_by_one(kLines);
    next_ = at + kLines * kLine;
    if (to_l1_) {
      ATTN_UNROLL for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine, 0, 3);
    } else {
      ATTN_UNROLL for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine, 0, 2);
    }
  }

  /// Prefetches lines while rows are copied.
  void lines(Index count) {
    if (!is_empty()) one_by_one(count);
  }

  /// Number of lines that the score product prefetches, and number of all remaining lines.
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

  struct Run {
    const std::byte* data;
    Index stride, row_lines, rows;
    Index lines() const { return row_lines * rows; }
  };
  template <class T>
  static Run run(const RowsToRead& rows, Index dim, Index count) {
    const Index stride = size_of_elements<T>(rows.dtype, rows.stride), width = size_of_elements<T>(rows.dtype, dim);
    if (stride == width) return {rows.data, 0, ceil_div(count * width, kLine), 1};
    return {rows.data, stride, ceil_div(width, kLine), count};
  }

  void begin(int number) {
    number_ = number;
    row_ = next_ = runs_[number].data;
    rows_ = runs_[number].rows;
    end_ = next_ + runs_[number].row_lines * kLine;
  }

  ATTN_INLINE void one_by_one(Index lines) {
    ATTN_NO_UNROLL for (; lines > 0; --lines) {
      if (next_ == end_ && !next_row()) return;
      if (to_l1_)
        __builtin_prefetch(next_, 0, 3);
      else
        __builtin_prefetch(next_, 0, 2);
      next_ += kLine;
    }
  }
  /// Advances to the next row. Returns whether there is one.
  ATTN_INLINE bool next_row() {
    if (--rows_ > 0) {
      row_ += runs_[number_].stride;
      next_ = row_;
      end_ = row_ + runs_[number_].row_lines * kLine;
    } else if (number_ + 1 < count_) {
      begin(number_ + 1);
    } else {
      restart(false);
    }
    return next_ != nullptr;
  }

  static constexpr int kMostRuns = 32;  // two tiles in pages of 4 tokens
  Run runs_[kMostRuns];                 ///< not initialised, because each step of each head constructs a prefetcher
  bool to_l1_ = false;
  int number_ = 0, count_ = 0;
  Index score_lines_ = -1;  ///< -1: all
  const std::byte* row_ = nullptr;
  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;  ///< end of the row
  Index rows_ = 0;
  Index per_line_ = 0, wait_ = kNever;  ///< bytes read per prefetched line, and until the next line
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
