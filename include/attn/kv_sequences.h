// Some sequences of a PagedKvCache, used as a cache of their own.
#pragma once

#include <utility>

#include "attn/detail/cache/append_undo.h"
#include "attn/detail/mods/lengths.h"

namespace attn {
inline namespace ATTN_BUILT_FOR {

/// Sequences of a PagedKvCache, in a given order. Tokens are appended to them, and attention runs over them, as with a
/// KvCache:
///
///     mha(x, pages.select({a, b}), causal());
///
/// It refers to the cache, which must outlive it.
template <class Cache>
class KvSequences {
 public:
  /// Sequences of `cache`, in the order given.
  KvSequences(Cache& cache, Indices sequences) : cache_(&cache), sequences_(std::move(sequences)) {}

  /// Appends the same number of tokens to each of the sequences; see PagedKvCache::append().
  template <class K, class V>
  void append(const K& k, const V& v) {
    cache_->append(sequences_, k, v);
  }
  /// Appends lens[i] tokens to sequence i.
  template <class K, class V>
  void append(const K& k, const V& v, Indices lens) {
    cache_->append(sequences_, k, v, std::move(lens));
  }

  /// The sequences as attention() takes them. Valid until the cache changes.
  auto view() const { return std::as_const(*cache_).view(sequences_); }
  /// @deprecated batch() is view() now.
  [[deprecated("it is view() now")]] auto batch() const { return view(); }

 private:
  friend class detail::AppendUndo<KvSequences>;
  auto marks() const { return cache_->marks(sequences_.values); }
  template <class Marks>
  void restore(const Marks& marks) noexcept {
    cache_->restore(sequences_.values, marks);
  }

  Cache* cache_;
  Indices sequences_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
