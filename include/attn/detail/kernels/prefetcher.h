// Fetches rows of keys and values from memory while others are worked on.
#pragma once

#include <algorithm>

#include "attn/detail/base/cpu.h"
#include "attn/detail/base/ranges.h"
#include "attn/detail/simd/simd.h"
#include "attn/detail/tensor/dtype_view.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Fetches the keys of a tile and then its values, a cache line at a time, in the order of memory, because what the
/// processor fetches by itself follows rising addresses. Kernels spread the prefetches evenly, because memory idles if
/// nothing is requested for 0.1 µs: without prefetches during the softmax, decoding took 8 % longer.
class Prefetcher {
 public:
  /// Fetches nothing.
  Prefetcher() = default;

  /// Fetches `rows` rows of keys and of values; the sizes of a row are in numbers of a T. Rows without data are not
  /// fetched.
  template <class T>
  static Prefetcher of(const RowsToRead& key, Index head_dim, const RowsToRead& value, Index v_dim, Index rows) {
    Prefetcher f;
    f.runs_[0] = run<T>(key, head_dim, rows);
    f.runs_[1] = run<T>(value, v_dim, rows);
    f.begin(0);
    return f;
  }

  bool is_empty() const { return next_ == nullptr; }

  /// From now on step() asks for `lines` lines in `steps` steps.
  ATTN_INLINE void spread(Index lines, Index steps) {
    rate_ = steps > 0 ? lines * kOne / steps : 0;
    due_ = 0;
  }
  ATTN_INLINE void step() {
    for (due_ += rate_; due_ >= kOne; due_ -= kOne) line();
  }
  template <int kLines>
  ATTN_INLINE void lines() {
    if (next_ == nullptr) return;
    ATTN_UNROLL for (int i = 0; i < kLines; ++i) line();
  }

  /// The lines of the keys, and all lines that are left.
  Index key_lines() const { return runs_[0].lines(); }
  Index lines_left() const {
    return (end_ - next_) / kLine + std::max<Index>(rows_ - 1, 0) * runs_[number_].row_lines +
           (number_ == 0 ? runs_[1].lines() : 0);
  }

 private:
  static constexpr Index kLine = kCacheLine, kOne = 256;

  struct Run {
    const std::byte* data = nullptr;
    Index stride = 0, row_lines = 0, rows = 0;
    Index lines() const { return row_lines * rows; }
  };
  template <class T>
  static Run run(const RowsToRead& rows, Index dim, Index count) {
    if (rows.data == nullptr || dim == 0) return {};
    const Index size = size_of_number<T>(rows.dtype), stride = rows.stride * size, width = dim * size;
    if (stride == width) return {rows.data, 0, ceil_div(count * width, kLine), 1};
    return {rows.data, stride, ceil_div(width, kLine), count};
  }

  void begin(int number) {
    number_ = number;
    row_ = next_ = runs_[number].data;
    rows_ = runs_[number].rows;
    end_ = next_ + runs_[number].row_lines * kLine;
  }

  /// Fetches one line. Several in a row, as a loop over the addresses has them, stand in the way of the loads beside
  /// them and made decoding 10 % slower.
  ATTN_INLINE void line() {
    if (next_ == end_ && !next_row()) return;
    __builtin_prefetch(next_, 0, 2);
    next_ += kLine;
  }
  /// Goes on to the next row. Returns whether there is one.
  ATTN_INLINE bool next_row() {
    if (--rows_ > 0) {
      row_ += runs_[number_].stride;
      next_ = row_;
      end_ = row_ + runs_[number_].row_lines * kLine;
      return true;
    }
    if (number_ == 1) return false;
    begin(1);
    return next_ != end_;
  }

  Run runs_[2];
  int number_ = 0;
  const std::byte* row_ = nullptr;
  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;  ///< where the row ends
  Index rows_ = 0;
  Index rate_ = 0, due_ = 0;  // in parts of a line
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
