// KvSequences: selected sequences of a PagedKvCache, usable like a KvCache.
#pragma once

#include <concepts>
#include <utility>

#include "attn/cache/append_undo.h"
#include "attn/core/mods/lengths.h"
#include "attn/kv_options.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Selected sequences of a PagedKvCache, in a given order. They support appending and attention, like a KvCache:
///
///     mha(x, pages.select({a, b}), causal());
///
/// A KvSequences refers to the cache, which must outlive it.
template <class Cache>
class KvSequences {
 public:
  /// Selects sequences of `cache`, in the given order.
  KvSequences(Cache& cache, Indices sequences) : cache_(&cache), sequences_(std::move(sequences)) {}

  /// Appends the same number of tokens to each of the sequences; see PagedKvCache::append().
  template <class K, class V>
  void append(const K& k, const V& v, const AppendOptions& options = {}) {
    cache_->append(sequences_, k, v, options);
  }
  /// Appends lens[i] tokens to the i-th of the sequences.
  template <class K, class V, std::convertible_to<Indices> Lens = Indices>
  void append(const K& k, const V& v, Lens lens, const AppendOptions& options = {}) {
    cache_->append(sequences_, k, v, std::move(lens), options);
  }

  /// Returns a view of the sequences, as attention() takes them. Valid until the cache changes.
  auto view() const { return std::as_const(*cache_).view(sequences_); }
  /// @deprecated Renamed to view().
  [[deprecated("renamed to view()")]] auto batch() const { return view(); }

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

}  // namespace attn::inline ATTN_BUILT_FOR
