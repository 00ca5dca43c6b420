// PagedKvCache: the keys and values of any number of sequences, in pages of a common pool that sequences may share.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/detail/base/ranges.h"
#include "attn/detail/cache/kv_pages.h"
#include "attn/kv_attention.h"
#include "attn/kv_sequences.h"
#include "attn/out_of_pages.h"

namespace attn {

struct PagedKvCacheConfig {
  Index pages = 0;       ///< in the pool, for all sequences
  Index page_size = 64;  ///< tokens in a page; multiples of 64 are read where they lie, others are copied tile by tile
  Index kv_heads = 1;
  Index head_dim = 0;
  Index v_dim = 0;                          ///< 0: head_dim
  std::optional<Rope> rope = std::nullopt;  ///< turns keys as they are appended, and the queries of attention()
};

inline namespace ATTN_BUILT_FOR {

/// A cache for many sequences of unknown lengths (Kwon et al. 2023, section 4). Its memory is a pool of pages of
/// `page_size` tokens, and each sequence has a table of its pages. Nothing is moved when a sequence grows, and no more
/// than the rest of its last page is unused.
///
///     attn::PagedKvCache<float> cache({.pages = 1024, .kv_heads = 8, .head_dim = 128});
///     const attn::Index a = cache.add();
///     cache.append(a, k, v);                      // (1, kv_heads, tokens, head_dim)
///     const attn::Index b = cache.fork(a);        // the same tokens, the same pages
///     cache.append({a, b}, k2, v2);               // (2, kv_heads, tokens, head_dim): only now the last page is copied
///     auto out = attn::attention(q, cache.batch({a, b})).out;
///     cache.release(a);
///
/// T is as for KvCache. The memory of all pages is allocated when the cache is made. If a call throws, the cache is as
/// it was before; release() and truncate() throw for wrong arguments only. Concurrent calls that only read are safe. A
/// copy is deep; a cache that was moved from may only be assigned to or destroyed.
template <class T>
class PagedKvCache {
 public:
  using Computed = detail::cached_t<T>;  ///< the type that attention is computed in

  /// @throws std::invalid_argument unless all sizes are positive.
  explicit PagedKvCache(const PagedKvCacheConfig& config)
      : config_(checked(config)),
        storage_(config_.pages, config_.kv_heads, config_.page_size, config_.head_dim, config_.v_dim),
        users_(static_cast<std::size_t>(config_.pages), 0),
        free_(config_.pages) {
    detail::check_cached<T>();
  }
  PagedKvCache(const PagedKvCache&) = default;
  PagedKvCache(PagedKvCache&&) noexcept = default;
  PagedKvCache& operator=(const PagedKvCache& other) { return *this = PagedKvCache(other); }
  PagedKvCache& operator=(PagedKvCache&&) noexcept = default;

  const PagedKvCacheConfig& config() const { return config_; }
  Index pages() const { return config_.pages; }
  Index free_pages() const { return free_.size(); }
  /// The bytes of the pool: keys, values and their scales.
  Index bytes() const { return storage_.bytes(); }

  /// Adds a sequence without tokens and returns its number, which is never used again.
  Index add() {
    sequences_.emplace(next_, Sequence{});
    return next_++;
  }

  /// Adds a sequence with the tokens of another, or the first `length` of them, and returns its number. Both share
  /// their pages; a shared page that is not full is copied when one of them appends to it.
  /// @throws std::invalid_argument if there is no such sequence, or if it has fewer tokens.
  Index fork(Index sequence, std::optional<Index> length = std::nullopt) {
    Sequence copy = of(sequence);
    if (length) {
      check_length("fork", sequence, *length);
      copy.length = *length;
      copy.pages.resize(static_cast<std::size_t>(pages_for(*length)));
    }
    const auto& added = sequences_.emplace(next_, std::move(copy)).first->second;
    for (Index page : added.pages) ++users(page);
    return next_++;
  }

  /// Forgets a sequence, and frees the pages that no other sequence has.
  void release(Index sequence) {
    truncate(sequence, 0);
    sequences_.erase(sequence);
  }

  /// Keeps the first `length` tokens of a sequence, forgets the others, and frees the pages that no sequence has any
  /// more.
  /// @throws std::invalid_argument if it has fewer.
  void truncate(Index sequence, Index length) {
    check_length("truncate", sequence, length);
    Sequence& s = of(sequence);
    s.length = length;
    drop_unused(s);
  }

  bool has(Index sequence) const { return sequences_.count(sequence) > 0; }
  Index sequences() const { return static_cast<Index>(sequences_.size()); }
  Index length(Index sequence) const { return of(sequence).length; }
  /// The numbers of a sequence's pages, in the order of its tokens.
  std::span<const Index> table(Index sequence) const { return of(sequence).pages; }

  /// How many free pages append() would take for `tokens` tokens, counting the copy of a shared page.
  Index pages_needed(Index sequence, Index tokens) const {
    constexpr Index kMost = Index(1) << 60;  // more than a pool can hold, and sums of it do not overflow
    detail::require(tokens >= 0 && tokens <= kMost, "pages_needed: ", tokens, " tokens are outside 0..2^60");
    return pages_needed(std::array{sequence}, std::array{tokens});
  }

  /// Appends tokens to a sequence: k (1, kv_heads, tokens, head_dim), v (1, kv_heads, tokens, v_dim); see
  /// KvCache::append().
  /// @throws OutOfPages if there are too few free pages; std::invalid_argument if shapes disagree or there is no such
  /// sequence.
  template <class K, class V>
  void append(Index sequence, const K& k, const V& v) {
    append(detail::Indices(std::vector{sequence}), k, v);
  }

  /// Appends the same number of tokens to each of some sequences: k (sequences, kv_heads, tokens, head_dim), v
  /// likewise.
  template <class K, class V>
  void append(detail::Indices sequences, const K& k, const V& v) {
    const auto& keys_held = detail::evaluated(k);
    const auto& values_held = detail::evaluated(v);
    const auto keys = detail::appended<Computed>(keys_held);
    const std::vector<Index> lens(sequences.values.size(), keys.dim(2));
    append(sequences.values, keys, detail::appended<Computed>(values_held), static_cast<Index>(lens.size()), lens,
           false);
  }

  /// Appends lens[i] tokens to sequences[i]: k (1, kv_heads, sum of lens, head_dim), v likewise, one sequence behind
  /// the other.
  template <class K, class V>
  void append(detail::Indices sequences, const K& k, const V& v, detail::Indices lens) {
    const auto& keys_held = detail::evaluated(k);
    const auto& values_held = detail::evaluated(v);
    append(sequences.values, detail::appended<Computed>(keys_held), detail::appended<Computed>(values_held), 1,
           lens.values, true);
  }

  /// These sequences in this order, as attention() takes them. Valid until the cache changes.
  KvBatch<Computed> batch(const detail::Indices& sequences) const {
    KvBatch<Computed> some = storage_.batch(config_.rope ? &*config_.rope : nullptr);
    for (Index s : sequences.values) some.add(table(s), length(s));
    return some;
  }

  /// These sequences in this order, for calls that append to them too: a MultiHeadAttention takes them.
  KvSequences<PagedKvCache> select(detail::Indices sequences) { return {*this, std::move(sequences)}; }

  /// All pages of keys, or values, (pages, kv_heads, page_size, dim). Elements behind the tokens of a page are
  /// indeterminate.
  TensorView<const T, 4> key_pages() const { return storage_.keys().numbers; }
  TensorView<const T, 4> value_pages() const { return storage_.values().numbers; }
  /// The scales of a cache of std::int8_t, (pages, kv_heads, page_size).
  TensorView<const float, 3> key_scales() const { return storage_.keys().scales; }
  TensorView<const float, 3> value_scales() const { return storage_.values().scales; }

 private:
  using View = detail::DTypeView<const Computed>;
  struct Sequence {
    std::vector<Index> pages;
    Index length = 0;
  };

  /// What restore() needs to know of a sequence before something is appended to it.
  struct Mark {
    Index length;
    std::optional<Index> last_page;
  };
  friend class KvSequences<PagedKvCache>;
  std::vector<Mark> marks(const std::vector<Index>& sequences) const {
    std::vector<Mark> all;
    for (Index sequence : sequences) {
      const Sequence& s = of(sequence);
      all.push_back({s.length, s.pages.empty() ? std::nullopt : std::optional(s.pages.back())});
    }
    return all;
  }
  /// Undoes an append right after it. It frees only pages that were free before, so the list of free pages has room.
  void restore(const std::vector<Index>& sequences, const std::vector<Mark>& marks) noexcept {
    for (std::size_t i = 0; i < marks.size(); ++i) {
      Sequence& s = of(sequences[i]);
      s.length = marks[i].length;
      drop_unused(s);
      if (s.pages.empty() || s.pages.back() == *marks[i].last_page) continue;
      ++users(*marks[i].last_page);  // other sequences still have the page, or it would not have been copied
      drop(std::exchange(s.pages.back(), *marks[i].last_page));
    }
  }

  static PagedKvCacheConfig checked(PagedKvCacheConfig c) {
    if (c.v_dim == 0) c.v_dim = c.head_dim;
    detail::require(c.pages > 0 && c.page_size > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.v_dim > 0,
                    "PagedKvCache: pages ", c.pages, ", page_size ", c.page_size, ", kv_heads ", c.kv_heads,
                    ", head_dim ", c.head_dim, ", v_dim ", c.v_dim, " must be positive");
    detail::require(!c.rope || c.rope->config().head_dim == c.head_dim, "PagedKvCache: head_dim is ", c.head_dim,
                    ", the rope was made for ", c.rope ? c.rope->config().head_dim : 0);
    return c;
  }

  const Sequence& of(Index sequence) const {
    const auto found = sequences_.find(sequence);
    detail::require(found != sequences_.end(), "PagedKvCache: there is no sequence ", sequence,
                    "; it was released, or never added");
    return found->second;
  }
  Sequence& of(Index sequence) { return const_cast<Sequence&>(std::as_const(*this).of(sequence)); }
  void check_length(const char* what, Index sequence, Index length) const {
    const Index has = of(sequence).length;
    detail::require(length >= 0 && length <= has, what, ": sequence ", sequence, " has ", has, " tokens, not ", length);
  }

  Index pages_for(Index tokens) const { return detail::ceil_div(tokens, config_.page_size); }
  Index& users(Index page) { return users_[static_cast<std::size_t>(page)]; }
  Index users(Index page) const { return users_[static_cast<std::size_t>(page)]; }
  Index take() {
    const Index page = free_.take();
    users(page) = 1;
    return page;
  }
  void drop(Index page) {
    if (--users(page) == 0) free_.put(page);
  }

  /// Drops the pages behind the last token.
  void drop_unused(Sequence& s) {
    const auto keep = static_cast<std::size_t>(pages_for(s.length));
    for (; s.pages.size() > keep; s.pages.pop_back()) drop(s.pages.back());
  }

  /// Whether appended tokens go into the sequence's last page, which is not full.
  bool writes_to_last(const Sequence& s, Index tokens) const { return tokens > 0 && s.length % config_.page_size != 0; }

  /// The same for several different sequences. If all sequences that share a page write to it, the last one need not
  /// copy it.
  Index pages_needed(std::span<const Index> sequences, std::span<const Index> lens) const {
    Index needed = 0;
    std::unordered_map<Index, Index> copies;  // how often each page is copied
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = of(sequences[i]);
      needed += pages_for(s.length + lens[i]) - static_cast<Index>(s.pages.size());
      if (!writes_to_last(s, lens[i])) continue;
      Index& copied = copies[s.pages.back()];
      if (copied + 1 < users(s.pages.back())) ++copied, ++needed;
    }
    return needed;
  }

  void append(const std::vector<Index>& sequences, const View& k, const View& v, Index batch,
              const std::vector<Index>& lens, bool ragged) {
    detail::check_appended(k, v, batch, config_.kv_heads, config_.head_dim, config_.v_dim);
    const Index given = static_cast<Index>(lens.size()), named = static_cast<Index>(sequences.size());
    detail::require(given == named, "append: ", given, " lengths for ", named, " sequences");
    Index left = k.dim(2);
    for (std::size_t i = 0; i < lens.size(); ++i) {
      detail::require(std::find(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(i), sequences[i]) ==
                          sequences.begin() + static_cast<std::ptrdiff_t>(i),
                      "append: sequence ", sequences[i], " is named twice");
      detail::require(lens[i] >= 0 && lens[i] <= left, "append: sequence ", sequences[i], " is to get ", lens[i],
                      " tokens, of ", k.dim(2), " there are ", left, " left");
      if (ragged) left -= lens[i];
    }
    detail::require(!ragged || left == 0, "append: the lengths add up to ", k.dim(2) - left, ", there are ", k.dim(2),
                    " tokens");
    const Index needed = pages_needed(sequences, lens);
    if (needed > free_pages()) throw OutOfPages(needed, free_pages(), pages());
    for (std::size_t i = 0; i < lens.size(); ++i) {  // allocates, and may throw, before anything is changed
      Sequence& s = of(sequences[i]);
      s.pages.reserve(static_cast<std::size_t>(pages_for(s.length + lens[i])));
    }

    typename detail::KvPages<T>::Writer writer(k.dim(2), config_.head_dim, config_.v_dim,
                                               config_.rope ? &*config_.rope : nullptr);

    Range rows{0, 0};
    for (std::size_t i = 0; i < lens.size(); ++i) {
      Sequence& s = of(sequences[i]);
      if (writes_to_last(s, lens[i])) own_last_page(s);
      while (static_cast<Index>(s.pages.size()) < pages_for(s.length + lens[i])) s.pages.push_back(take());
      rows = {ragged ? rows.end : 0, ragged ? rows.end + lens[i] : lens[i]};
      storage_.append(writer, k, v, ragged ? 0 : static_cast<Index>(i), rows, s.pages, s.length);
    }
    for (std::size_t i = 0; i < lens.size(); ++i) of(sequences[i]).length += lens[i];
  }

  /// Copies the last page if other sequences have it too.
  void own_last_page(Sequence& s) {
    Index& last = s.pages.back();
    if (users(last) == 1) return;
    const Index copy = take();
    storage_.copy_page(storage_, last, copy, s.length % config_.page_size);
    drop(std::exchange(last, copy));
  }

  PagedKvCacheConfig config_;
  detail::KvPages<T> storage_;
  std::vector<Index> users_;  // for each page, in how many tables it is
  detail::PageList free_;
  std::unordered_map<Index, Sequence> sequences_;
  Index next_ = 0;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
