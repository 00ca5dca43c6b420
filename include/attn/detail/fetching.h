// Layer 2: rows of keys and values that come from memory while others are worked on.
#pragma once

#include <limits>

#include "attn/detail/simd.h"
#include "attn/detail/stored.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The keys of a tile and then its values, a cache line at a time in the order of memory: what the processor fetches by itself
/// follows rising addresses. Kernels ask for lines evenly, because memory that is asked for nothing for a tenth of a
/// microsecond stands still: without lines in the softmax, decoding took 8 % longer.
class Fetching {
 public:
  /// Nothing.
  Fetching() = default;

  /// Rows of so many bytes, the numbers of a T. Without data: none.
  template <class T>
  static Fetching of(const RowsToRead& key, Index head_dim, const RowsToRead& value, Index v_dim, Index rows) {
    Fetching f;
    f.runs_[0] = run<T>(key, head_dim, rows);
    f.runs_[1] = run<T>(value, v_dim, rows);
    f.begin(f.runs_[0].data ? 0 : 1);
    return f;
  }

  /// From now on step() asks for so many lines in `steps` steps.
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

  /// Lines of the keys, and all that are left.
  Index key_lines() const { return runs_[0].lines(); }
  Index lines_left() const { return left_; }

 private:
  static constexpr Index kLine = 64, kOne = 256;

  struct Run {
    const std::byte* data = nullptr;
    Index stride = 0, width = 0, rows = 0;
    Index lines() const { return data ? (width + kLine - 1) / kLine * rows : 0; }
  };
  template <class T>
  static Run run(const RowsToRead& rows, Index dim, Index count) {
    if (rows.data == nullptr || dim == 0) return {};
    const Index size = size_of_number<T>(rows.storage), stride = rows.stride * size, width = dim * size;
    if (stride == width) return {rows.data, 0, count * width, 1};
    return {rows.data, stride, width, count};
  }

  void begin(int number) {
    number_ = number;
    left_ = runs_[0].lines() + runs_[1].lines();
    row_ = next_ = runs_[number].data;
    rows_ = runs_[number].rows;
    end_ = next_ ? next_ + runs_[number].width : nullptr;
  }

  ATTN_INLINE void line() {
    if (next_ == nullptr) return;
    __builtin_prefetch(next_, 0, 2);
    next_ += kLine;
    --left_;
    if (next_ >= end_) next_row();
  }
  ATTN_INLINE void next_row() {
    const Run& run = runs_[number_];
    if (--rows_ > 0) {
      row_ += run.stride;
      next_ = row_;
      end_ = row_ + run.width;
      return;
    }
    const Index left = left_;
    if (number_ == 0)
      begin(1);
    else
      next_ = nullptr;
    left_ = left;
  }

  Run runs_[2];
  int number_ = 0;
  const std::byte* row_ = nullptr;
  const std::byte* next_ = nullptr;  ///< null: there are no more
  const std::byte* end_ = nullptr;
  Index rows_ = 0, left_ = 0;
  Index rate_ = 0, due_ = 0;  // in parts of a line
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
