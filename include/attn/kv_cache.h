// KvCache: keys and values of several sequences, each contiguous in memory, for autoregressive decoding.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/cache/append_undo.h"
#include "attn/cache/kv_pages.h"
#include "attn/cache/sequence_rows.h"
#include "attn/cached_attention.h"
#include "attn/kv_options.h"

namespace attn {

/// The sizes of a KvCache.
struct KvCacheConfig {
  Index batch = 1;     ///< sequences
  Index kv_heads = 1;  ///< heads of keys and values
  Index capacity = 0;  ///< initial capacity of each sequence, in tokens; 0: 64, or max_capacity if that is less
  Index head_dim = 0;  ///< features of a key; required
  Index v_dim = 0;     ///< features of a value; 0: head_dim
  /// Upper limit on the capacity. If it equals `capacity`, memory never moves.
  Index max_capacity = std::numeric_limits<Index>::max();
  /// Rotates keys as they are appended, and the queries of attention(). A RopeAxes will do, too.
  std::optional<Rope> rope = std::nullopt;
};

namespace detail {
/// Matches a KvCacheConfig whose rope is given in braces, `.rope = {.head_dim = 64}`, which does not construct a Rope.
struct KvCacheWithRopeInBraces {
  Index batch, kv_heads, capacity, head_dim, v_dim, max_capacity;
  RopeConfig rope;
};
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// Stores the keys and values of the tokens so far, so that each new token costs one row of attention (Shazeer 2019,
/// section 2.3.1):
///
///     attn::KvCache<float> cache({.batch = 1, .kv_heads = 8, .capacity = 4096, .head_dim = 128, .rope = rope});
///     cache.append(k, v);                                               // the prompt, one token or several
///     auto out = attn::attention(q, cache, attn::causal()).out;         // q: the queries of these tokens
///
/// T is float, double, long double, a 16-bit float, or one of the following types. Rows are then quantised as they are
/// appended, and attention is computed in float, over the stored numbers:
/// - std::int8_t, with one scale per token and head (largest magnitude / 127). The error of an element is at most
///   scale / 2. A row whose elements all have magnitudes below 2^-120 becomes 0, and a row with inf or NaN becomes NaN.
/// - Float8E4M3 and Float8E5M2, without a scale: relative errors of up to 2^-4 and 2^-3, for elements in their range.
/// - Int4, with one scale per 32 elements of a row, and Int4Asymmetric, with a scale and a zero point (4.5 and 5 bits
///   per element). Views of keys and values have a column for each 32 elements; the last is padded. Elements after the
///   last multiple of 16 are converted one by one.
///
/// The tokens of a head are contiguous, (capacity, dim); keys() and values() are views of them. When a sequence is
/// full, the capacity of all sequences doubles, or grows to what is needed if that is more. All tokens are then moved:
/// old views become invalid, and old and new memory exist at the same time. Thanks to doubling, appending tokens one at
/// a time copies each token a constant number of times on average. `max_capacity` limits the growth.
///
/// If a call throws, the cache keeps its contents. Concurrent calls that only read are safe. A copy is deep; a
/// moved-from cache may only be assigned to or destroyed.
template <class T>
class KvCache {
 public:
  using Computed = detail::cached_t<T>;  ///< the type that attention is computed in

  /// @throws std::invalid_argument if a size is not positive (0 is allowed where it selects a default), or if capacity
  /// exceeds max_capacity.
  explicit KvCache(const KvCacheConfig& config)
      : config_(checked(config)),
        pages_(make(config_.capacity)),
        lengths_(static_cast<std::size_t>(config_.batch), 0),
        positions_(lengths_.size(), detail::ExplicitPositions(axes())),
        appended_(lengths_.size(), 0) {
    detail::check_cached<T>();
  }
  /// Not to be called: fails to compile, with the message of detail::refuse_rope_in_braces().
  template <int kNever = 0>
  explicit KvCache(const detail::KvCacheWithRopeInBraces&)
      : KvCache(detail::refuse_rope_in_braces<KvCacheConfig, kNever>()) {}
  /// A deep copy.
  KvCache(const KvCache&) = default;
  /// Moves; the moved-from cache may then only be assigned to or destroyed.
  KvCache(KvCache&&) noexcept = default;
  /// Assigns a deep copy. If it throws, this cache is unchanged.
  KvCache& operator=(const KvCache& other) { return *this = KvCache(other); }
  /// Moves; the moved-from cache may then only be assigned to or destroyed.
  KvCache& operator=(KvCache&&) noexcept = default;

  /// The sizes, with the defaults filled in.
  const KvCacheConfig& config() const { return config_; }
  /// The number of tokens that each sequence has space for.
  Index capacity() const { return pages_.page_size(); }
  /// The number of tokens of each sequence.
  std::span<const Index> lengths() const { return lengths_; }
  /// The number of tokens of one sequence. @throws std::invalid_argument if the sequence does not exist.
  Index length(Index sequence) const { return lengths_[at(sequence)]; }
  /// The position by which the rope rotates a row of a sequence: the row number, unless append() was given positions or
  /// drop() kept the old positions. Row length(sequence) gives the position of the next token. `axis`: see RopeAxes.
  /// @throws std::invalid_argument if the sequence does not exist.
  Index position(Index sequence, Index row, Index axis = 0) const { return positions_[at(sequence)].rows()(row, axis); }
  /// The size of keys, values and their scales in bytes.
  Index bytes() const { return pages_.bytes(); }

  /// Appends the same number of tokens to each sequence: k (batch, kv_heads, tokens, head_dim), v (batch, kv_heads,
  /// tokens, v_dim), with any strides. Elements have type Computed, or may be 16-bit floats if Computed is float.
  /// @throws std::invalid_argument if shapes disagree, or if positions do not fit or are given without a rope;
  /// std::length_error if a sequence would exceed max_capacity.
  template <class K, class V>
  void append(const K& k, const V& v, const AppendOptions& options = {}) {
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) {
      append_tokens(tokens, detail::ShortList<Index>(lengths_.size(), tokens.count()), false, options);
    });
  }

  /// Not to be called: fails to compile, with a message that says to pass values too.
  template <class K>
  void append(const K&) {
    static_assert(sizeof(K) == 0, "attn: pass keys and values to append(): cache.append(k, v)");
  }

  /// Appends lens[i] tokens to sequence i: k (1, kv_heads, sum of lens, head_dim), v (1, kv_heads, sum of lens, v_dim),
  /// with the sequences concatenated. `lens` is an Indices. (Its type is deduced because g++ 12 would otherwise accept
  /// {.positions = …} as lengths.)
  template <class K, class V, std::convertible_to<Indices> Lens = Indices>
  requires(!std::is_integral_v<K>) void append(const K& k, const V& v, Lens lens, const AppendOptions& options = {}) {
    const Indices given(std::move(lens));
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) { append_tokens(tokens, given.values, true, options); });
  }

  /// Appends tokens to one sequence: k (1, kv_heads, tokens, head_dim), v (1, kv_heads, tokens, v_dim).
  template <class K, class V>
  void append(Index sequence, const K& k, const V& v, const AppendOptions& options = {}) {
    detail::with_new_tokens<T>(k, v, [&](const Tokens& tokens) {
      detail::ShortList<Index> lens(lengths_.size(), 0);
      lens[at(sequence)] = tokens.count();
      append_tokens(tokens, lens, true, options);
    });
  }
  /// @deprecated Renamed to append().
  template <class K, class V>
  [[deprecated("renamed to append()")]] void append_to(Index sequence, const K& k, const V& v) {
    append(sequence, k, v);
  }

  /// Keeps the first `length` tokens of a sequence and removes the others.
  /// @throws std::invalid_argument if the sequence has fewer tokens.
  void truncate(Index sequence, Index length) {
    Index& of = lengths_[at(sequence)];
    detail::require(length >= 0 && length <= of, "truncate: length must be in 0..", of, " (the tokens of sequence ",
                    sequence, "), but is ", length);
    appended_[at(sequence)] = std::max<Index>(appended_[at(sequence)] - (of - length), 0);
    of = length;
    positions_[at(sequence)].truncate(length);
  }

  /// Removes all tokens but keeps the memory.
  void clear() {
    for (Index s = 0; s < config_.batch; ++s) truncate(s, 0);
  }

  /// Removes tokens begin … end - 1 of a sequence. The row numbers of later tokens decrease by end - begin. With a
  /// rope, their keys are rotated by the position of `begin` minus that of `end` (StreamingLLM: Xiao et al. 2024,
  /// section 3.2), so that no gap between positions remains; attention_factor() is not applied again. Each rotation
  /// rounds a key once more, by at most about an ulp of the larger element of a pair, or as append() does if an element
  /// has fewer than 16 bits; 100 drops of the same length changed floats by 30 ulps. With `.keep_positions = true`,
  /// keys are not rotated. In both cases, mods see row numbers.
  ///
  /// Cost: the keys and values of later tokens are copied once. With a rope, the call takes less than 1.5 times as long
  /// as without.
  /// @throws std::invalid_argument unless 0 <= begin <= end <= length, or if later rows would move by different numbers
  /// on the axes of a RopeAxes. The cache is then unchanged.
  void drop(Index sequence, Index begin, Index end, const DropOptions& options = {}) {
    keep(sequence, detail::rows_beside(begin, end, sequence, length(sequence)), options.keep_positions);
  }

  /// Keeps only the given rows of a sequence, as policies that evict the keys of lowest weight do (Zhang et al. 2023,
  /// "H2O"; Li et al. 2024, "SnapKV"). The rows must increase. The tokens of all other rows are removed as by drop(),
  /// with the same options.
  /// @throws std::invalid_argument unless rows increase and exist. The cache is then unchanged.
  void retain(Index sequence, const Indices& rows, const DropOptions& options = {}) {
    keep(sequence, detail::listed_rows(rows.values, sequence, length(sequence)), options.keep_positions);
  }

  /// Keeps everything before a tree of drafted tokens, and one path of the tree (see tree()). The nodes are the tokens
  /// of the last append to the sequence. `path` has the numbers of the accepted nodes, from the root on, where 0 is the
  /// first appended token; it may be empty. Keys are not rotated, because accepted nodes already have the positions of
  /// their new rows. Each node of the path must be a child of the one before it. The cache does not know the tree and
  /// can only check the positions of the nodes.
  ///
  ///     cache.append(sequence, k, v, {.positions = attn::tree_positions(parents, first)});
  ///     … attention(q, cache, attn::tree(parents)) …
  ///     cache.accept(sequence, {0, 2, 5});
  ///
  /// @throws std::invalid_argument unless `path` lists nodes in increasing order and, with a rope, each node is one
  /// position after the one before it. The cache is then unchanged.
  void accept(Index sequence, const Indices& path) {
    keep(sequence,
         detail::rows_of_path(path.values, appended_[at(sequence)], sequence, length(sequence),
                              config_.rope ? std::optional(positions_[at(sequence)].rows()) : std::nullopt),
         true);
  }

  /// Replaces each sequence i with the old sequence from[i], as beam search requires. A sequence may be used several
  /// times or not at all. Cost: each sequence that changes is copied once; if sequences change places in a cycle, one
  /// of them is copied twice. (A PagedKvCache lets sequences share their common pages instead.)
  /// @throws std::invalid_argument unless `from` has one valid sequence index per sequence.
  void reorder(const Indices& from);

  /// Grows the capacity to at least `tokens` tokens per sequence. @throws std::length_error if `tokens` exceeds
  /// max_capacity.
  void reserve(Index tokens) {
    if (tokens > config_.max_capacity)
      detail::raise(std::length_error(
          detail::joined({"attn: reserve(", tokens, "): exceeds max_capacity, which is ", config_.max_capacity})));
    if (tokens > capacity()) grow(tokens);
  }

  /// Returns a view of the keys of all sequences, (batch, kv_heads, longest length, head_dim). Elements past the end of
  /// a shorter sequence are indeterminate; key_lengths(cache.lengths()) drops them. Valid until the cache changes.
  TensorView<const T, 4> keys() const { return view_of(pages_.keys().numbers, 0, config_.batch, longest()); }
  /// Returns a view of the values of all sequences, (batch, kv_heads, longest length, v_dim); see keys().
  TensorView<const T, 4> values() const { return view_of(pages_.values().numbers, 0, config_.batch, longest()); }

  /// Returns a view of the keys of one sequence, (1, kv_heads, length, head_dim). With a rope, they are already
  /// rotated.
  TensorView<const T, 4> keys(Index sequence) const {
    return view_of(pages_.keys().numbers, sequence, 1, length(sequence));
  }
  /// Returns a view of the values of one sequence, (1, kv_heads, length, v_dim).
  TensorView<const T, 4> values(Index sequence) const {
    return view_of(pages_.values().numbers, sequence, 1, length(sequence));
  }

  /// Returns the scales of the keys of a std::int8_t cache, (batch, kv_heads, capacity). The value of an element is the
  /// stored integer times the scale of its token and head.
  TensorView<const float, 3> key_scales() const { return pages_.keys().scales; }
  /// Returns the scales of the values of a std::int8_t cache; see key_scales().
  TensorView<const float, 3> value_scales() const { return pages_.values().scales; }

  /// Returns a view of all sequences, as attention() takes them. Valid until the cache changes.
  KvView<Computed> view() const {
    KvView<Computed> all = pages_.view(config_.rope ? &*config_.rope : nullptr);
    for (Index s = 0; s < config_.batch; ++s) all.add(std::array{s}, length(s), positions_[at(s)].rows());
    return all;
  }
  /// @deprecated Renamed to view().
  [[deprecated("renamed to view()")]] KvView<Computed> batch() const { return view(); }

  /// Rotates all keys by the angles of another rope instead, which then also rotates the queries and the keys that
  /// follow: LongRoPE's factors for long contexts, or another base. Each stored key is rounded once more, as by drop(),
  /// and attention factors are applied. Layers with a rope need the same change: MultiHeadAttention::change_rope().
  /// @throws std::invalid_argument if the cache has no rope, or if the new one rotates other pairs of features or
  /// by positions on other axes.
  void change_rope(const Rope& rope) {
    detail::check_rope_change(config_.rope ? &*config_.rope : nullptr, rope);
    Rope changed = rope;
    typename Pages::Mover mover(pages_, &*config_.rope);
    for (Index s = 0; s < config_.batch; ++s)
      pages_.change_rope(mover, rope, s, {0, length(s)}, positions_[at(s)].rows());
    config_.rope = std::move(changed);
  }

 private:
  friend class detail::AppendUndo<KvCache>;
  struct Marks {
    std::vector<Index> lengths, appended;
  };
  Marks marks() const { return {lengths_, appended_}; }
  void restore(const Marks& marks) noexcept {
    for (Index s = 0; s < config_.batch; ++s) truncate(s, marks.lengths[at(s)]);
    std::copy(marks.appended.begin(), marks.appended.end(), appended_.begin());
  }

  using Pages = detail::KvPages<T>;
  using Tokens = detail::NewTokens<T>;

  static KvCacheConfig checked(KvCacheConfig c) {
    if (c.v_dim == 0) c.v_dim = c.head_dim;
    if (c.capacity == 0) c.capacity = std::min<Index>(c.max_capacity, 64);
    detail::require(c.batch > 0 && c.kv_heads > 0 && c.head_dim > 0 && c.v_dim > 0, "KvCache: batch ", c.batch,
                    ", kv_heads ", c.kv_heads, ", head_dim ", c.head_dim, ", v_dim ", c.v_dim, " must all be positive",
                    c.head_dim == 0 ? "; head_dim has no default" : "");
    detail::require(c.capacity > 0 && c.capacity <= c.max_capacity, "KvCache: capacity is ", c.capacity,
                    " and max_capacity is ", c.max_capacity, "; capacity must be positive and at most max_capacity");
    detail::require(!c.rope || c.rope->config().head_dim == c.head_dim, "KvCache: head_dim is ", c.head_dim,
                    ", but the head_dim of its rope is ", c.rope ? c.rope->config().head_dim : 0);
    return c;
  }
  Pages make(Index capacity) const {
    return {config_.batch, config_.kv_heads, capacity, config_.head_dim, config_.v_dim};
  }
  Index axes() const { return config_.rope ? config_.rope->axes() : 1; }
  std::size_t at(Index sequence) const {
    detail::require(sequence >= 0 && sequence < config_.batch, "KvCache: sequence ", sequence,
                    " is out of range; the batch is ", config_.batch);
    return static_cast<std::size_t>(sequence);
  }
  Index longest() const { return *std::max_element(lengths_.begin(), lengths_.end()); }
  static TensorView<const T, 4> view_of(const TensorView<const T, 4>& t, Index first, Index count, Index len) {
    return t.part(first * t.stride(0), {count, t.dim(1), len, t.dim(3)}, t.strides());
  }

  /// Appends lens[i] of the tokens to sequence i; see NewTokens.
  void append_tokens(const Tokens& tokens, std::span<const Index> lens, bool packed, const AppendOptions& options) {
    detail::check_appended(tokens, config_, lengths_.size(), lens, packed, [](std::size_t i) { return i; });
    const std::vector<Index> positions = detail::checked_positions(options.positions.values, tokens.count(),
                                                                   config_.batch, packed, config_.rope ? axes() : 0);
    Index most = 0, longest = 0;
    for (std::size_t i = 0; i < lens.size(); ++i)
      if (lengths_[i] + lens[i] > most) most = lengths_[i] + lens[i], longest = static_cast<Index>(i);
    if (most > config_.max_capacity)
      detail::raise(std::length_error(detail::joined(
          {"attn: sequence ", longest, " of the cache would have ", most, " tokens, but max_capacity is ",
           config_.max_capacity, "; truncate() it, or construct the cache with a larger max_capacity"})));
    typename Pages::Writer writer(tokens, config_.rope ? &*config_.rope : nullptr);
    detail::for_each_given(positions, axes(), lens, [&](std::size_t i, const Index* given) {
      positions_[i].reserve(lengths_[i], lens[i], given);
    });
    if (most > capacity()) grow(most);
    detail::for_each_given(positions, axes(), lens, [&](std::size_t i, const Index* given) {
      positions_[i].append(lengths_[i], lens[i], given);
    });
    struct Sequence {
      std::array<Index, 1> pages;
      Index length;
      const detail::ExplicitPositions& positions;
    };
    pages_.append(writer, lens, packed, [&](std::size_t i) {
      return Sequence{{static_cast<Index>(i)}, lengths_[i], positions_[i]};
    });
    for (std::size_t i = 0; i < lens.size(); ++i) {
      lengths_[i] += lens[i];
      if (lens[i] > 0) appended_[i] = lens[i];
    }
  }

  /// Keeps only some rows of a sequence; see plan_removal().
  void keep(Index sequence, const std::vector<Range>& kept, bool keep_positions) {
    const Rope* const rope = config_.rope ? &*config_.rope : nullptr;
    detail::ExplicitPositions& positions = positions_[at(sequence)];
    detail::Removal plan = detail::plan_removal(std::array{sequence}, capacity(), positions.rows(), kept,
                                                rope && !keep_positions, [](Index page) { return page; });
    typename Pages::Mover mover(pages_, rope);
    pages_.move(mover, plan.moves);
    positions = std::move(plan.positions);
    lengths_[at(sequence)] = plan.length;
    appended_[at(sequence)] = 0;
  }

  /// Grows the capacity to at least `needed` tokens.
  void grow(Index needed) {
    const Index doubled = capacity() > config_.max_capacity / 2 ? config_.max_capacity : 2 * capacity();
    Pages larger = make(std::max(needed, doubled));
    for (Index s = 0; s < config_.batch; ++s) larger.copy_page(pages_, s, s, length(s));
    pages_ = std::move(larger);
  }

  KvCacheConfig config_;
  Pages pages_;
  std::vector<Index> lengths_;
  std::vector<detail::ExplicitPositions> positions_;
  std::vector<Index> appended_;  // how many of the last rows of each sequence are from its last append
};

template <class T>
void KvCache<T>::reorder(const Indices& given) {
  const std::span<const Index> from = given.values;
  const Index count = static_cast<Index>(from.size());
  detail::require(count == config_.batch, "reorder: got ", count, " indices for ", config_.batch, " sequences");
  for (Index i = 0; i < count; ++i)
    detail::require(from[at(i)] >= 0 && from[at(i)] < count, "reorder: from[", i, "] = ", from[at(i)],
                    " is out of range; there are ", count, " sequences");
  std::vector<Index> lengths(lengths_.size()), readers(lengths_.size(), 0);
  std::vector<detail::ExplicitPositions> positions(lengths_.size());
  std::vector<Index> appended(lengths_.size());
  for (Index i = 0; i < count; ++i) {
    lengths[at(i)] = length(from[at(i)]);
    positions[at(i)] = positions_[at(from[at(i)])];
    appended[at(i)] = appended_[at(from[at(i)])];
    if (from[at(i)] != i) ++readers[at(from[at(i)])];  // how many sequences must still copy this one
  }
  const auto is_in_ring = [&](Index s) {
    Index next = from[at(s)];
    for (Index i = 0; i < count && next != s; ++i) next = from[at(next)];
    return next == s && from[at(s)] != s;
  };
  std::optional<Pages> aside;  // holds one sequence of a cycle; allocated before anything is written
  for (Index s = 0; s < count && !aside; ++s)
    if (is_in_ring(s)) aside.emplace(1, config_.kv_heads, capacity(), config_.head_dim, config_.v_dim);

  const auto copy = [&](Index source, Index to) { pages_.copy_page(pages_, source, to, length(source)); };
  std::vector<bool> done(lengths_.size(), false);
  for (Index start = 0; start < count; ++start)
    // A sequence that no other sequence must still copy may be overwritten. Its source then has one reader fewer; if
    // none is left, the source is overwritten next.
    for (Index s = start; !done[at(s)] && readers[at(s)] == 0; s = from[at(s)]) {
      done[at(s)] = true;
      if (from[at(s)] == s) break;
      copy(from[at(s)], s);
      --readers[at(from[at(s)])];
    }
  for (Index s = 0; s < count; ++s) {
    if (done[at(s)] || from[at(s)] == s) continue;
    aside->copy_page(pages_, s, 0, length(s));
    Index to = s;
    for (; from[at(to)] != s; to = from[at(to)]) {
      copy(from[at(to)], to);
      done[at(to)] = true;
    }
    pages_.copy_page(*aside, 0, to, length(s));
    done[at(to)] = true;
  }
  lengths_ = std::move(lengths);
  positions_ = std::move(positions);
  appended_ = std::move(appended);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
