// KvView: keys and values of several sequences, each with its own length, in a cache or in pages.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/choose_kernels.h"
#include "attn/core/mods/lengths.h"
#include "attn/core/tensor/kv_rows.h"
#include "attn/rope.h"

namespace attn::inline ATTN_BUILT_FOR {

/// A view of the keys and values of several sequences, as attention() reads them, in a cache or in your own pages. It
/// owns only a copy of the page tables. The cache or the pages must outlive it and must not change while it is in use.
///
/// T is the type that attention is computed in: float for elements of 16 or fewer bits.
template <class T>
class KvView {
 public:
  using Scalar = T;  ///< the type that attention is computed in

  /// Views your own pages, of any scalar type and strides: key_pages (pages, kv_heads, page_size, head_dim) and
  /// value_pages (pages, kv_heads, page_size, v_dim). The tables are (sequences, pages of the longest sequence): token
  /// j of a sequence is in page tables(sequence, j / page_size), at j % page_size. Entries after the last page of a
  /// sequence are not read.
  /// @throws std::invalid_argument if shapes disagree, a table is too short for its sequence, or a table names a page
  /// that does not exist.
  template <class K, class V, class Tables>
  KvView(const K& key_pages, const V& value_pages, const Tables& given_tables, const Indices& lengths)
      : KvView(detail::as_rank4(attn::view(key_pages)), detail::as_rank4(attn::view(value_pages)), nullptr,
               detail::kKernelChoice<T, !detail::hold_computed_numbers<K, V>()>) {
    static_assert(std::is_integral_v<typename detail::Traits<Tables>::Scalar> && detail::Traits<Tables>::kRank == 2,
                  "attn::KvView: tables must hold integers and have rank 2, with one row per sequence");
    const auto tables = attn::view(given_tables);
    const Index given = static_cast<Index>(lengths.values.size());
    detail::require(tables.dim(0) == given, "KvView: got ", tables.dim(0), " tables for ", given, " lengths");
    std::vector<Index> table;
    for (Index s = 0; s < given; ++s) {
      const Index length = lengths.values[static_cast<std::size_t>(s)];
      check_length(s, length, tables.dim(1));
      table.clear();
      for (Index i = 0; i < pages_for(length); ++i) table.push_back(static_cast<Index>(tables(s, i)));
      add(table, length);
    }
  }

  /// The number of sequences.
  Index size() const { return static_cast<Index>(sequences_.size()); }
  /// The number of tokens of a sequence.
  Index length(Index sequence) const { return of(sequence).length; }
  /// The positions by which the rope rotates the rows of a sequence.
  RowPositions positions(Index sequence) const { return of(sequence).positions; }
  /// The position that mods see for row 0 of a sequence, unless Options::kv_offset is given. It is above 0 if tokens
  /// before that row have left a window.
  Index offset(Index sequence) const { return of(sequence).offset; }
  /// Heads of keys and values.
  Index kv_heads() const { return k_.dim(1); }
  /// Features of a key.
  Index head_dim() const { return k_.dim(3); }
  /// Features of a value.
  Index v_dim() const { return v_.dim(3); }
  /// Tokens in a page.
  Index page_size() const { return k_.dim(2); }

  /// The Rope that rotates the queries and has rotated the keys; null if none.
  const Rope* rope() const { return rope_; }

  /// Returns the view itself. Caches have a function of the same name, which returns a view of their sequences.
  const KvView& view() const { return *this; }
  /// @deprecated Renamed to view().
  [[deprecated("renamed to view()")]] const KvView& batch() const { return *this; }

  /// Views pages without any sequences yet; used by caches.
  KvView(const detail::DTypeView<const T>& k, const detail::DTypeView<const T>& v, const Rope* rope,
         const detail::KernelChoice<T>& kernels, const TensorView<const float, 3>& k_scales = {},
         const TensorView<const float, 3>& v_scales = {}, detail::ChooseDots<T> dots = nullptr)
      : k_(k), v_(v), k_scales_(k_scales), v_scales_(v_scales), rope_(rope), kernels_(&kernels), choose_dots_(dots) {
    const auto pages = [](const auto& t) { return Shape<3>{t.dim(0), t.dim(1), t.dim(2)}; };
    detail::require(pages(k) == pages(v), "KvView: keys have shape ", k.shape(), ", values ", v.shape(),
                    " as (pages, kv_heads, page_size, dim); all sizes but dim must be equal");
    detail::require(k.dim(2) > 0, "KvView: page_size must be positive, but keys have shape ", k.shape());
  }

  /// Adds a sequence of `length` tokens in the pages that `table` lists. `positions` are the positions by which the
  /// rope rotates the rows; their list is not copied. Mods see row 0 at position `offset`, unless Options::kv_offset is
  /// given.
  /// @throws std::invalid_argument if `table` has too few pages, or names one that does not exist.
  void add(std::span<const Index> table, Index length, RowPositions positions = {}, Index offset = 0) {
    const Index sequence = size();
    check_length(sequence, length, static_cast<Index>(table.size()));
    for (std::size_t i = 0; i < table.size(); ++i)
      detail::require(table[i] >= 0 && table[i] < k_.dim(0), "KvView: page ", table[i], " is out of range (entry ", i,
                      " in the table of sequence ", sequence, "); there are ", k_.dim(0), " pages");
    const Index first = static_cast<Index>(tables_.size());
    tables_.insert(tables_.end(), table.begin(), table.end());
    sequences_.push_back({first, static_cast<Index>(table.size()), length, positions, offset});
  }

  /// The keys of a sequence as the loops read them.
  detail::KvRows<T> keys(Index sequence) const { return {k_, pages(sequence), k_scales_}; }
  /// The values of a sequence as the loops read them.
  detail::KvRows<T> values(Index sequence) const { return {v_, pages(sequence), v_scales_}; }
  /// The kernels that can read the element types of this view.
  const detail::KernelChoice<T>& kernels() const { return *kernels_; }
  /// The same for calls whose queries or results are 16-bit floats.
  const detail::KernelChoice<T>& kernels_with_halves() const {
    return k_.dtype() == detail::DType::native ? detail::kKernelChoice<T> : *kernels_;
  }
  detail::ChooseDots<T> choose_dots() const { return choose_dots_; }  ///< Chooses integer kernels; null if none.

 private:
  /// A sequence of `length` tokens, whose table of `pages` entries begins at tables_[first].
  struct Sequence {
    Index first, pages, length;
    RowPositions positions;
    Index offset;
  };

  const Sequence& of(Index sequence) const { return sequences_[static_cast<std::size_t>(sequence)]; }
  detail::Pages pages(Index sequence) const {
    static constexpr Index kNone[] = {0};  // the table of a sequence without tokens
    const Sequence& s = of(sequence);
    return {s.pages > 0 ? tables_.data() + s.first : kNone, s.pages, page_size()};
  }
  Index pages_for(Index tokens) const { return detail::ceil_div(tokens, page_size()); }
  void check_length(Index sequence, Index length, Index pages) const {
    detail::require(length >= 0 && pages_for(length) <= pages, "KvView: sequence ", sequence, " has ", length,
                    " tokens, but its table has ", pages, " pages of ", page_size(), " tokens");
  }

  detail::DTypeView<const T> k_, v_;
  TensorView<const float, 3> k_scales_, v_scales_;
  const Rope* rope_;
  const detail::KernelChoice<T>* kernels_;
  detail::ChooseDots<T> choose_dots_;
  std::vector<Index> tables_;
  std::vector<Sequence> sequences_;
};

/// @deprecated Renamed to KvView.
template <class T>
using KvBatch [[deprecated("renamed to KvView")]] = KvView<T>;

/// Concatenated queries of several sequences, with different numbers of queries: q (1, heads, sum of lens, head_dim),
/// in which lens[i] queries belong to sequence i. A named tensor is not copied and must outlive the Ragged; a temporary
/// is moved into it.
template <class Q>
struct Ragged {
  Q q;                      ///< a reference; or the tensor itself, if it was a temporary
  std::vector<Index> lens;  ///< number of queries of each sequence
};
/// Returns a Ragged: `attn::ragged(q, {512, 1})`.
template <class Q>
Ragged<Q> ragged(Q&& q, Indices lens) {
  return {std::forward<Q>(q), std::move(lens.values).to_vector()};
}

}  // namespace attn::inline ATTN_BUILT_FOR
