// Where the rows of keys and values lie: in a tensor, in pages of one, or in lists of its rows.
#pragma once

#include <algorithm>

#include "attn/detail/tensor/dtype_view.h"
#include "attn/detail/tensor/row_list.h"
#include "attn/isa.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The kernels for keys and values of 8 bits that a set of vectors has, or null. A cache of such numbers hands on the
/// function, so that other programs do not compile the kernels.
template <class T>
struct DotKernels;
template <class T>
using ChooseDots = const DotKernels<T>* (*)(VectorSet);

}  // namespace ATTN_BUILT_FOR

/// Pages that hold the tokens of one sequence, `size` each: token j is in page table[j / size], at j % size.
struct Pages {
  const Index* table = nullptr;  ///< null: there are none, tokens lie one behind the other
  Index count = 0;
  Index size = 0;
};

/// The keys, or the values, of a call: a tensor (batch, kv_heads, len, dim), or of a sequence in pages
/// (pages, kv_heads, tokens of a page, dim). A number of 8 bits stands for itself times the scale of its row; scales
/// are (batch or pages, kv_heads, len), those of a head one behind the other.
///
/// Where keys are gathered, key j of a head is number j of a list, and the list says which token that is.
template <class T>
class KvRows : public DTypeView<const T> {
 public:
  KvRows() = default;
  KvRows(const DTypeView<const T>& tensor, const Pages& pages = {}, const TensorView<const float, 3>& scales = {})
      : DTypeView<const T>(tensor), pages_(pages), scales_(scales) {}

  /// The keys of `tensor` in the order of lists.
  KvRows(const DTypeView<const T>& tensor, const RowList& list) : DTypeView<const T>(tensor), list_(list) {}

  /// The rows from `first` on. Where that is in the middle of a page, they end with the page.
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
  const Index* list(Index batch, Index head) const { return list_.of(batch, head); }
  Index page_size() const { return pages_.size; }
  Index len_of_pages() const { return pages_.count * pages_.size; }

  /// Whether there is more than one page.
  bool is_cut() const { return pages_.count > 1; }
  bool is_scaled() const { return this->dtype() == DType::i8; }

  /// Whether there are such `keys` at all, and each row lies a stride behind the one before.
  bool in_one_piece(const Range& keys) const {
    if (is_gathered()) return keys.size() <= list_.left_of_run(keys.begin);
    if (!is_paged()) return true;
    return keys.begin % pages_.size + keys.size() <= pages_.size && keys.begin / pages_.size < pages_.count;
  }

  /// Whether some of the tiles of so many keys may lie in several pieces. They begin at multiples of their length.
  bool cuts_tiles_of(Index keys) const {
    return is_gathered() ? list_.run % keys != 0 : is_cut() && pages_.size % keys != 0;
  }

  /// How many of the rows from `key` on, of those in `keys`, lie in one piece.
  Index piece(Index key, const Range& keys) const {
    if (is_gathered()) return std::min(keys.end - key, list_.left_of_run(key));
    return is_paged() ? std::min(keys.end - key, pages_.size - key % pages_.size) : keys.end - key;
  }

  /// The rows of a head from key `key` on.
  RowsToRead rows(Index batch, Index head, Index key = 0) const {
    if (is_gathered()) {
      RowsToRead run = DTypeView<const T>::rows(batch, head, list_.at(batch, head, key));
      run.stride *= list_.step;
      return run;
    }
    if (!is_paged()) return DTypeView<const T>::rows(batch, head, key);
    return DTypeView<const T>::rows(pages_.table[key / pages_.size], head, key % pages_.size);
  }

  /// What the numbers of these rows are to be multiplied by: one number for each of a piece.
  const float* scales(Index batch, Index head, Index key) const {
    if (!is_paged()) return &scales_(batch, head, key);
    return &scales_(pages_.table[key / pages_.size], head, key % pages_.size);
  }

 private:
  Pages pages_;
  RowList list_;
  TensorView<const float, 3> scales_;
};

}  // namespace attn::detail
