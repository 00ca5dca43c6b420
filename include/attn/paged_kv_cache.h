// PagedKvCache: keys and values of any number of sequences, in pages of one pool. Sequences may share pages.
#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/cache/paged_layers.h"
#include "attn/cached_attention.h"
#include "attn/kv_options.h"
#include "attn/kv_sequences.h"
#include "attn/out_of_pages.h"

namespace attn {

/// The sizes of a PagedKvCache.
struct PagedKvCacheConfig {
  Index pages = 0;  ///< pages in the pool, for all sequences; required
  /// Tokens in a page. If this is a multiple of 64, kernels read pages in place. For single queries that share their
  /// keys with others, a multiple of 16 is enough, except with integer dot products or the matrix unit. With all other
  /// page sizes, keys and values are copied tile by tile.
  Index page_size = 64;
  Index kv_heads = 1;                       ///< heads of keys and values
  Index head_dim = 0;                       ///< features of a key; required
  Index v_dim = 0;                          ///< features of a value; 0: head_dim
  std::optional<Rope> rope = std::nullopt;  ///< rotates keys as they are appended, and queries of attention()
  /// If positive, sequences have a window of this many tokens: an append first drops the pages in which neither the
  /// last token nor a later one sees a key under sliding_window(window - 1). Also pass that mask to calls, unless there
  /// are sinks. An append never drops its own tokens, so feed long prompts in chunks. A sequence takes up to
  /// (sinks + window + page_size - 1 + chunk) / page_size pages, rounded up, and with a rope another sinks / page_size,
  /// rounded up.
  Index window = 0;
  /// With a window: how many of the first tokens stay in addition (StreamingLLM: Xiao et al. 2024, section 3.2). The
  /// rows of the window then follow those of the sinks, and mods see row numbers. With a rope, the tokens of the window
  /// keep their positions, and the sinks are rotated to the positions before the window, so that distances never exceed
  /// the number of tokens held. Each rotation starts from the original keys of the sinks.
  Index sinks = 0;
};

namespace detail {
/// A PagedKvCacheConfig whose rope is given in braces; see KvCacheWithRopeInBraces.
struct PagedKvCacheWithRopeInBraces {
  Index pages, page_size, kv_heads, head_dim, v_dim;
  RopeConfig rope;
  Index window, sinks;
};
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// A key-value cache for many sequences of unknown lengths (Kwon et al. 2023, section 4). Its memory is a pool of pages
/// of `page_size` tokens, and each sequence has a table of its pages. Growing a sequence moves no data, and at most the
/// rest of its last page is unused.
///
///     attn::PagedKvCache<float> cache({.pages = 1024, .kv_heads = 8, .head_dim = 128});
///     const attn::Index a = cache.add();
///     cache.append(a, k, v);                      // (1, kv_heads, tokens, head_dim)
///     const attn::Index b = cache.fork(a);        // the same tokens, the same pages
///     cache.append({a, b}, k2, v2);               // (2, kv_heads, tokens, head_dim): copies the shared last page
///     auto out = attn::attention(q, cache.view({a, b})).out;
///     cache.release(a);
///
/// T may be any element type of KvCache. The constructor allocates the memory of all pages. If a call throws, the cache
/// is unchanged, except that tokens may have left windows. release() and truncate() throw only for invalid arguments.
/// Concurrent calls that only read are safe. Copies are deep; a moved-from cache may only be assigned to or destroyed.
template <class T>
class PagedKvCache {
 public:
  using Computed = detail::cached_t<T>;  ///< the type that attention is computed in

  /// @throws std::invalid_argument if a size is not positive (0 is allowed where it selects a default), or if the rope
  /// or the window does not fit.
  explicit PagedKvCache(const PagedKvCacheConfig& config)
      : config_(checked(config)), storage_(config_, 1, {config_.rope}) {}
  /// Not to be called: fails to compile, with the message of detail::refuse_rope_in_braces().
  template <int kNever = 0>
  explicit PagedKvCache(const detail::PagedKvCacheWithRopeInBraces&)
      : PagedKvCache(detail::refuse_rope_in_braces<PagedKvCacheConfig, kNever>()) {}
  /// A deep copy.
  PagedKvCache(const PagedKvCache&) = default;
  /// Moves; the moved-from cache may then only be assigned to or destroyed.
  PagedKvCache(PagedKvCache&&) noexcept = default;
  /// A deep copy. If copying throws, this cache is unchanged.
  PagedKvCache& operator=(const PagedKvCache& other) { return *this = PagedKvCache(other); }
  /// Moves; the moved-from cache may then only be assigned to or destroyed.
  PagedKvCache& operator=(PagedKvCache&&) noexcept = default;

  /// The sizes, with the defaults filled in.
  const PagedKvCacheConfig& config() const { return config_; }
  /// The number of pages in the pool.
  Index pages() const { return config_.pages; }
  /// The number of pages that no sequence uses.
  Index free_pages() const { return storage_.tables.free_pages(); }
  /// The size of the pool in bytes: keys, values and their scales.
  Index bytes() const { return storage_.bytes(); }

  /// Adds an empty sequence and returns its number. Numbers are never reused.
  Index add() { return storage_.tables.add(); }

  /// Adds a sequence with the tokens of another, or with the first `length` of them, and returns its number. The two
  /// share their pages; a shared page that is not full is copied when one of them appends to it.
  /// @throws std::invalid_argument if there is no such sequence, or if the sequence has fewer than `length` tokens;
  /// after tokens have left a window without sinks, also if `length` is shorter than the window.
  Index fork(Index sequence, std::optional<Index> length = std::nullopt) {
    return storage_.tables.fork(sequence, length);
  }

  /// Removes a sequence and frees the pages that no other sequence uses.
  void release(Index sequence) { storage_.tables.release(sequence); }

  /// Keeps the first `length` tokens of a sequence, removes the others, and frees pages that no sequence uses any more.
  /// @throws std::invalid_argument as fork().
  void truncate(Index sequence, Index length) { storage_.tables.truncate(sequence, length); }

  /// Removes tokens begin … end - 1 of a sequence. The row numbers of later tokens decrease by end - begin. With a
  /// rope, their keys are rotated by the position of `begin` minus that of `end` (StreamingLLM: Xiao et al. 2024,
  /// section 3.2), so that no gap between positions remains; attention_factor() is not applied again. Each rotation
  /// rounds a key once more, by at most about an ulp of the larger element of a pair, or as append() does if an element
  /// has fewer than 16 bits; 100 drops of the same length changed floats by 30 ulps. With `.keep_positions = true`,
  /// keys are not rotated. In both cases, mods see row numbers.
  ///
  /// Cost: keys of later tokens are rotated in place. Keys and values are moved only in pages whose rows change, so a
  /// drop of whole pages moves no values; without a rope or with `keep_positions`, it moves nothing at all. Pages that
  /// no sequence uses any more are freed. A shared page is copied before it is changed, so that other sequences keep
  /// their tokens.
  /// @throws std::invalid_argument unless 0 <= begin <= end <= length, or if tokens have left a window without sinks,
  /// or if later rows would move by different numbers on the axes of a RopeAxes; OutOfPages if copies of shared pages
  /// need more pages than are free. The cache is then unchanged.
  void drop(Index sequence, Index begin, Index end, const DropOptions& options = {}) {
    storage_.drop(sequence, begin, end, options);
  }

  /// Keeps only the given rows of a sequence, as policies that evict the keys of lowest weight do (Zhang et al. 2023,
  /// "H2O"; Li et al. 2024, "SnapKV"). The rows must increase. The tokens of all other rows are removed as by drop(),
  /// with the same options.
  /// @throws std::invalid_argument unless rows increase and exist, or if tokens have left a window without sinks;
  /// OutOfPages if copies of shared pages need more pages than are free. The cache is then unchanged.
  void retain(Index sequence, const Indices& rows, const DropOptions& options = {}) {
    storage_.retain(sequence, rows.values, options);
  }

  /// Keeps everything before a tree of drafted tokens, and one path of the tree (see tree()). The nodes are the tokens
  /// of the last append to the sequence. `path` has the numbers of the accepted nodes, from the root on, where 0 is the
  /// first appended token; it may be empty. Keys are not rotated, because accepted nodes already have the positions of
  /// their new rows. Each node of the path must be a child of the one before it. The cache does not know the tree and
  /// can only check the positions of the nodes.
  ///
  ///     cache.append(sequence, k, v, {.positions = attn::tree_positions(parents, first)});
  ///     … attention(q, cache.view({sequence}), attn::tree(parents)) …
  ///     cache.accept(sequence, {0, 2, 5});
  ///
  /// @throws std::invalid_argument unless `path` lists nodes in increasing order and, with a rope, each node is one
  /// position after the one before it, or if fewer tokens would remain than fork() allows; OutOfPages if copies of
  /// shared pages need more pages than are free. The cache is then unchanged.
  void accept(Index sequence, const Indices& path) { storage_.accept(sequence, path.values); }

  /// Whether there is a sequence with this number.
  bool has(Index sequence) const { return storage_.tables.has(sequence); }
  /// The number of sequences.
  Index sequences() const { return storage_.tables.count(); }
  /// The number of tokens of a sequence. @throws std::invalid_argument if there is no such sequence.
  Index length(Index sequence) const { return storage_.tables.of(sequence).length; }
  /// The position by which the rope rotates a row of a sequence; see KvCache::position().
  Index position(Index sequence, Index row, Index axis = 0) const {
    return storage_.tables.of(sequence).positions.rows()(row, axis);
  }
  /// The position that mods see for row 0 of a sequence: the number of tokens that have left its window; 0 with sinks.
  Index offset(Index sequence) const { return storage_.tables.of(sequence).offset; }
  /// The page numbers of a sequence, in the order of its tokens.
  std::span<const Index> table(Index sequence) const { return storage_.tables.of(sequence).pages; }

  /// Returns how many free pages append() would take for `tokens` tokens, including the copy of a shared page.
  Index pages_needed(Index sequence, Index tokens) const { return storage_.tables.pages_needed(sequence, tokens); }

  /// Appends tokens to a sequence: k (1, kv_heads, tokens, head_dim), v (1, kv_heads, tokens, v_dim); see
  /// KvCache::append().
  /// @throws OutOfPages if there are too few free pages; std::invalid_argument if shapes disagree or there is no such
  /// sequence.
  template <class K, class V>
  void append(Index sequence, const K& k, const V& v, const AppendOptions& options = {}) {
    append(Indices{sequence}, k, v, options);
  }

  /// Appends the same number of tokens to each of several sequences: k (sequences, kv_heads, tokens, head_dim), v
  /// (sequences, kv_heads, tokens, v_dim).
  template <class K, class V>
  void append(Indices sequences, const K& k, const V& v, const AppendOptions& options = {}) {
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) {
      const detail::ShortList<Index> lens(sequences.values.size(), tokens.count());
      append_tokens(tokens, sequences.values, lens, false, options);
    });
  }

  /// Appends lens[i] tokens to sequences[i]: k (1, kv_heads, sum of lens, head_dim), v (1, kv_heads, sum of lens,
  /// v_dim), with sequences packed back to back. `lens` is an Indices; see KvCache::append().
  template <class K, class V, std::convertible_to<Indices> Lens = Indices>
  void append(Indices sequences, const K& k, const V& v, Lens lens, const AppendOptions& options = {}) {
    const Indices given(std::move(lens));
    detail::with_new_tokens<T>(
        k, v, [&](const Tokens& tokens) { append_tokens(tokens, sequences.values, given.values, true, options); });
  }

  /// Not to be called: fails to compile, with a message that says to pass sequence numbers.
  template <class K, class V>
  requires(!std::is_integral_v<K>) void append(const K&, const V&) {
    static_assert(sizeof(K) == 0,
                  "attn: pass the sequence number that add() returned to append() of a PagedKvCache: append(sequence, "
                  "k, v), or append({a, b}, k, v) for several");
  }

  /// Returns a view of these sequences, in this order, for attention(). Valid until the cache changes.
  KvView<Computed> view(const Indices& sequences) const { return storage_.view(0, sequences.values); }
  /// Not to be called: fails to compile, with a message that says to select sequences. Calls that are passed the cache
  /// itself end up here too. (A default argument of the other view() would not work, because it would be compiled
  /// wherever a concept checks for view().)
  template <class X = T>
  KvView<Computed> view() const {
    static_assert(sizeof(X) == 0,
                  "attn: select the sequences of a PagedKvCache: pass cache.view({a, b}) to attention(), or "
                  "cache.select({a, b}) to a layer, which appends to them");
    return storage_.view(0, {});
  }
  /// @deprecated Renamed to view().
  [[deprecated("renamed to view()")]] KvView<Computed> batch(const Indices& sequences) const { return view(sequences); }

  /// Returns these sequences, in this order, for calls that also append to them, such as those of a MultiHeadAttention.
  KvSequences<PagedKvCache> select(Indices sequences) { return {*this, std::move(sequences)}; }

  /// All pages of keys, (pages, kv_heads, page_size, dim). Elements after the last token of a page are indeterminate.
  TensorView<const T, 4> key_pages() const { return storage_.pages(0).keys().numbers; }
  /// All pages of values; see key_pages().
  TensorView<const T, 4> value_pages() const { return storage_.pages(0).values().numbers; }
  /// The scales of the keys of a std::int8_t cache, (pages, kv_heads, page_size).
  TensorView<const float, 3> key_scales() const { return storage_.pages(0).keys().scales; }
  /// The scales of the values; see key_scales().
  TensorView<const float, 3> value_scales() const { return storage_.pages(0).values().scales; }

  /// Rotates all keys by the angles of another rope instead; see KvCache::change_rope().
  /// @throws std::invalid_argument if the cache has no rope, or if the new one rotates other pairs of features.
  void change_rope(const Rope& rope) {
    detail::check_rope_change(storage_.rope(0), rope);
    std::optional<Rope> changed = rope;
    storage_.change_ropes({rope});
    config_.rope = std::move(changed);
  }

 private:
  using Tokens = detail::NewTokens<T>;
  friend class KvSequences<PagedKvCache>;
  /// Slides windows before it takes the marks, because AppendUndo cannot restore tokens that have left a window.
  auto marks(std::span<const Index> sequences) {
    storage_.slide_windows(sequences);
    return storage_.tables.marks(sequences);
  }
  void restore(std::span<const Index> sequences, std::span<const detail::PageTables::Mark> marks) noexcept {
    storage_.tables.restore(sequences, marks);
  }

  static PagedKvCacheConfig checked(PagedKvCacheConfig c) {
    if (c.v_dim == 0) c.v_dim = c.head_dim;
    detail::require(c.pages > 0 && c.page_size > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.v_dim > 0,
                    "PagedKvCache: pages ", c.pages, ", page_size ", c.page_size, ", kv_heads ", c.kv_heads,
                    ", head_dim ", c.head_dim, ", v_dim ", c.v_dim, " must all be positive",
                    c.head_dim == 0 ? "; head_dim has no default" : "");
    detail::require(!c.rope || c.rope->config().head_dim == c.head_dim, "PagedKvCache: head_dim is ", c.head_dim,
                    ", but the head_dim of its rope is ", c.rope ? c.rope->config().head_dim : 0);
    detail::check_window("PagedKvCache", c, c.rope.has_value());
    return c;
  }

  void append_tokens(const Tokens& tokens, std::span<const Index> sequences, std::span<const Index> lens, bool packed,
                     const AppendOptions& options) {
    detail::check_appended(tokens, config_, sequences.size(), lens, packed,
                           [&](std::size_t i) { return sequences[i]; });
    const std::vector<Index> positions = detail::checked_positions(
        options.positions.values, tokens.count(), static_cast<Index>(sequences.size()), packed, storage_.axes());
    // Allocates memory, which may throw, so it comes before any change.
    typename detail::PagedLayers<T>::Writer writer(tokens, storage_.rope(0));
    storage_.tables.check_append(sequences, lens);
    storage_.slide_windows(sequences);
    storage_.take(sequences, lens, positions);
    storage_.write(0, writer, sequences, lens, packed);
    storage_.tables.lengthen(sequences, lens);
  }

  PagedKvCacheConfig config_;
  detail::PagedLayers<T> storage_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
