// The rows of keys and values: of a tensor, of its pages, or in the order of lists.
#pragma once

#include <algorithm>

#include "attn/core/tensor/dtype_view.h"
#include "attn/isa.h"
#include "attn/types.h"

namespace attn::detail {

/// Lists of rows, one per batch element and head: entry i of a list is row rows[i] of the tensor. Lists are split into
/// runs of `run` entries from their beginning; the rows of a run are `step` rows apart.
struct RowList {
  const Index* rows = nullptr;      ///< null: no lists, entry i is row i
  Index of_batch = 0, of_head = 0;  ///< distance from the list of a batch element, or head, to the next
  Index run = 1;
  Index step = 1;
  /// Where each list begins in `rows`, if their lengths differ; of_batch and of_head then count entries of `begins`.
  const Index* begins = nullptr;

  constexpr bool exists() const { return rows != nullptr; }
  constexpr const Index* of(Index batch, Index head) const {
    const Index first = batch * of_batch + head * of_head;
    return rows + (begins != nullptr ? begins[first] : first);
  }
  constexpr Index at(Index batch, Index head, Index number) const { return of(batch, head)[number]; }
  /// Number of entries left in the run, from `number` on.
  constexpr Index left_of_run(Index number) const { return run - number % run; }
};

inline namespace ATTN_BUILT_FOR {

/// A function that returns the kernels for 8-bit integers on a set of vectors, or null. Only caches of them pass it
/// on, so that other programs do not compile the kernels.
template <class T>
struct DotKernels;
template <class T>
using ChooseDots = const DotKernels<T>* (*)(VectorSet);

}  // namespace ATTN_BUILT_FOR

/// Pages that hold the tokens of one sequence, `size` each: token j is in page table[j / size], at j % size.
struct Pages {
  const Index* table = nullptr;  ///< null: no pages, tokens are stored in order
  Index count = 0;
  Index size = 0;
};

/// The keys, or the values, of a call: a tensor (batch, kv_heads, len, dim), or a sequence in pages (pages, kv_heads,
/// tokens of a page, dim). The value of an 8-bit integer is the integer times the scale of its row; scales are (batch
/// or pages, kv_heads, len), contiguous for each head.
///
/// If keys are gathered, key j of a head is the token in entry j of its list. In pages, all entries of all lists are
/// tokens of the sequence.
template <class T>
class KvRows : public DTypeView<const T> {
 public:
  KvRows() = default;
  KvRows(const DTypeView<const T>& tensor, const Pages& pages = {}, const TensorView<const float, 3>& scales = {})
      : DTypeView<const T>(tensor), pages_(pages), scales_(scales) {}

  /// The same keys in the order of `list`, whose entries are tokens of the tensor, or of the sequence in pages.
  KvRows listed(const RowList& list) const {
    KvRows rows = *this;
    rows.list_ = list;
    return rows;
  }

  /// The rows from `first` on. If row `first` is in the middle of a page, the rows end with that page.
  KvRows from(Index first) const {
    Shape<4> shape = this->shape();
    Pages pages = pages_;
    const Index skipped = is_paged() ? first % pages_.size : first;
    TensorView<const float, 3> scales = scales_;
    if (scales.data() != nullptr) scales = scales.slice(2, skipped, scales.dim(2));
    shape[2] -= skipped;
    if (is_paged()) {
      pages.table += first / pages_.size;
      pages.count = skipped > 0 ? 1 : pages_.count - first / pages_.size;
      pages.size -= skipped;
    }
    return KvRows(this->part(skipped * this->stride(2), shape, this->strides()), pages, scales);
  }

  bool is_paged() const { return pages_.table != nullptr; }
  bool is_gathered() const { return list_.exists(); }
  const Pages& pages() const { return pages_; }
  const Index* list(Index batch, Index head) const { return list_.of(batch, head); }
  Index page_size() const { return pages_.size; }
  Index len_of_pages() const { return pages_.count * pages_.size; }

  /// Whether there is more than one page.
  bool has_several_pages() const { return pages_.count > 1; }
  bool is_scaled() const { return this->dtype() == DType::i8; }

  /// Whether each row of `keys` is one stride after the previous one. Paged keys must all be in one page that exists.
  bool in_one_piece(const Range& keys) const {
    if (is_gathered()) return keys.size() <= list_.left_of_run(keys.begin);
    if (!is_paged()) return true;
    return keys.begin % pages_.size + keys.size() <= pages_.size && keys.begin / pages_.size < pages_.count;
  }

  /// Whether a tile of this many keys may consist of several pieces. Tiles begin where position `first` + row is a
  /// multiple of their length.
  bool splits_tiles_of(Index keys, Index first = 0) const {
    if (!is_gathered() && !has_several_pages()) return false;
    return (is_gathered() ? list_.run : pages_.size) % keys != 0 || first % keys != 0;
  }

  /// Number of rows of `keys` from `key` on that are equally spaced in memory.
  Index piece(Index key, const Range& keys) const {
    if (is_gathered()) return std::min(keys.end - key, list_.left_of_run(key));
    return is_paged() ? std::min(keys.end - key, pages_.size - key % pages_.size) : keys.end - key;
  }

  /// The rows of a head from key `key` on.
  RowsToRead rows(Index batch, Index head, Index key = 0) const {
    const Index token = token_of(batch, head, key);
    if (is_paged()) return DTypeView<const T>::rows(pages_.table[token / pages_.size], head, token % pages_.size);
    RowsToRead run = DTypeView<const T>::rows(batch, head, token);
    if (is_gathered()) run.stride *= list_.step;
    return run;
  }

  /// Like rows(), for tensors and single pages, whose rows are all in one piece.
  RowsToRead rows_of_piece(Index batch, Index head, Index key) const {
    return DTypeView<const T>::rows(is_paged() ? pages_.table[0] : batch, head, key);
  }

  /// The factors that these rows must be multiplied by, one per row of a piece.
  const float* scales(Index batch, Index head, Index key) const {
    const Index token = token_of(batch, head, key);
    if (!is_paged()) return &scales_(batch, head, token);
    return &scales_(pages_.table[token / pages_.size], head, token % pages_.size);
  }

 private:
  Index token_of(Index batch, Index head, Index key) const { return is_gathered() ? list_.at(batch, head, key) : key; }

  Pages pages_;
  RowList list_;
  TensorView<const float, 3> scales_;
};

}  // namespace attn::detail
