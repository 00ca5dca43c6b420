// Keys or values that are copied next, and fetched meanwhile.
#pragma once

#include <utility>

#include "attn/detail/base/cpu.h"
#include "attn/detail/base/ranges.h"
#include "attn/detail/simd/vec.h"
#include "attn/detail/tensor/kv_rows.h"

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

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
