// Keys that are listed for each query: the sorted lists, and gathering the keys in them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/base/sync.h"
#include "attn/core/mods/grouping/given_lists.h"
#include "attn/core/mods/grouping/grouped_mask.h"
#include "attn/core/mods/hints.h"

namespace attn::detail {

/// Lists of keys of any lengths, in ascending order without duplicates. There are (batch or 1) x (heads, kv_heads or 1)
/// x (q_len or 1) lists.
struct KeyLists : CompressedLists {
  Index columns;      ///< of the tensor that the lists were given in; -1 if they were given one by one
  Index longest = 0;  ///< length of the longest list

  /// Has no lists yet. There will be as many as the sizes say.
  KeyLists(Index of_batch, Index of_heads, Index of_rows, Index of_columns) : columns(of_columns) {
    batch = of_batch, heads = of_heads, rows = of_rows;
    offsets.reserve(static_cast<std::size_t>(batch * heads * rows + 1));
  }

  /// Appends `given`, sorted, as the next list; -1 means no key.
  template <class Integer>
  void add(std::span<const Integer> given) {
    const std::size_t first = indices.size();
    for (const Integer key : given)
      if (key != static_cast<Integer>(-1)) indices.push_back(static_cast<Index>(key));
    sort(first);
    offsets.push_back(static_cast<Index>(indices.size()));
    longest = std::max(longest, offsets.back() - static_cast<Index>(first));
  }

  /// Pads `indices` after the last list, so that `longest` keys can be read from the beginning of any list.
  void finish() {
    indices.resize(indices.size() + static_cast<std::size_t>(longest), indices.empty() ? 0 : indices.back());
  }

  /// Returns the lists of one batch element.
  KeyLists of_element(Index element) const {
    KeyLists own(1, heads, rows, columns);
    for (Index i = number(element, 0, 0), end = i + heads * rows; i < end; ++i) own.add(list(i));
    own.finish();
    return own;
  }
  /// Returns the lists restricted to the keys in a range; entries are relative to the first key of that range.
  KeyLists part(const Range& of) const {
    KeyLists some(batch, heads, rows, columns);
    std::vector<Index> own;
    for (Index i = 0; i < count(); ++i) {
      own.clear();
      for (const Index key : list(i))
        if (of.begin <= key && key < of.end) own.push_back(key - of.begin);
      some.add(std::span<const Index>(own));
    }
    some.finish();
    return some;
  }

 private:
  /// Sorts the keys from index `first` on and removes duplicates. Setting a bit for each key and then scanning all
  /// words of bits took 4 µs for 2048 of 65536 keys, while std::sort() took 70 µs. Sparse keys go to std::sort().
  void sort(std::size_t first) {
    const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::adjacent_find(begin, indices.end(), std::greater_equal<Index>()) == indices.end()) return;
    const std::size_t count = indices.size() - first,
                      words = static_cast<std::size_t>(*std::max_element(begin, indices.end())) / 64 + 1;
    if (words > 16 * count) {
      std::sort(begin, indices.end());
      indices.erase(std::unique(begin, indices.end()), indices.end());
      return;
    }
    if (bits_.size() < words) bits_.resize(words);
    for (std::size_t i = first; i < indices.size(); ++i)
      bits_[static_cast<std::size_t>(indices[i]) / 64] |= std::uint64_t(1) << (indices[i] % 64);
    std::size_t to = first;
    for (std::size_t w = 0; w < words; ++w)
      for (std::uint64_t left = std::exchange(bits_[w], 0); left != 0; left &= left - 1)
        indices[to++] = static_cast<Index>(w * 64) + std::countr_zero(left);
    indices.resize(to);
  }

  std::vector<std::uint64_t> bits_;  ///< all 0 between calls of sort()
};

/// The inverse of the lists: for each key, the queries that list it, in ascending order, and their entries.
struct QueriesByKey {
  struct Entry {
    Index row;    ///< row of the query
    Index entry;  ///< index into KeyLists::indices
  };
  Index keys = 0;  ///< one more than the largest listed key
  std::vector<Index> begins;
  std::vector<Entry> entries;

  explicit QueriesByKey(const KeyLists& lists) {
    for (Index i = 0; i < lists.count(); ++i)
      if (lists.size(i) > 0) keys = std::max(keys, lists.list(i).back() + 1);
    const auto for_each = [&](const auto& visit) {
      for (Index i = 0; i < lists.count(); ++i)
        for (Index entry = lists.begin(i); entry < lists.begin(i + 1); ++entry)
          visit(i / lists.rows * keys + lists.indices[static_cast<std::size_t>(entry)], Entry{i % lists.rows, entry});
    };
    begins.resize(static_cast<std::size_t>(lists.batch * lists.heads * keys + 1));
    entries.resize(static_cast<std::size_t>(lists.offsets.back()));
    for_each([&](Index number, const Entry&) { ++begins[static_cast<std::size_t>(number) + 1]; });
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::vector<Index> next(begins.begin(), begins.end());
    for_each([&](Index number, const Entry& entry) {
      entries[static_cast<std::size_t>(next[static_cast<std::size_t>(number)]++)] = entry;
    });
  }

  /// Returns the entries of a key. `lists` is the index of the key's batch element and head among all that have lists.
  std::span<const Entry> of(Index lists, Index key) const {
    if (key >= keys) return {};
    const auto number = static_cast<std::size_t>(lists * keys + key);
    return {entries.data() + begins[number], static_cast<std::size_t>(begins[number + 1] - begins[number])};
  }
};

/// Predicate and hints for the listed keys of a call.
struct ListedKeys {
  const KeyLists* lists;
  Index heads_of_list;  ///< neighbouring query heads that share a list
  Index q_offset;

  std::span<const Index> of(Index batch, Index head, Index q) const {
    return lists->list(lists->number(batch, head / heads_of_list, q - q_offset));
  }
  bool operator()(const Position& p) const {
    const auto list = of(p.batch, p.head, p.q);
    return std::binary_search(list.begin(), list.end(), p.kv);
  }
  /// Like TensorPredicate::words(): sets bit j of words[i] to whether query first.q + i lists key first.kv + j.
  template <int kQueries, class Word>
  void words(const Position& first, Index keys, Word* words) const {
    for (int i = 0; i < kQueries; ++i) {
      const auto list = of(first.batch, first.head, first.q + i);
      words[i] = 0;
      for (auto at = std::lower_bound(list.begin(), list.end(), first.kv); at != list.end() && *at < first.kv + keys;
           ++at)
        words[i] = static_cast<Word>(words[i] | Word(1) << (*at - first.kv));
    }
  }
  /// Returns the queries whose lists must be checked: only one if all share a list.
  Range asked(const Range& q) const { return lists->rows == 1 ? Range{q.begin, q.begin + 1} : q; }

  Coverage coverage(const Tile& t) const {
    const Range queries = asked(t.q);
    if (is_wide(queries)) return Coverage::some;
    bool any = false, all = true;
    for (Index q = queries.begin; q < queries.end; ++q) {
      const auto list = of(t.batch, t.head, q);
      const auto first = std::lower_bound(list.begin(), list.end(), t.kv.begin);
      const Index count = std::lower_bound(first, list.end(), t.kv.end) - first;
      any |= count > 0;
      all &= count == t.kv.size();
    }
    return all ? Coverage::all : any ? Coverage::some : Coverage::none;
  }
  Range kv_range(const Tile& t) const {
    const Range queries = asked(t.q);
    if (is_wide(queries)) return t.kv;
    Range visited{};
    for (Index q = queries.begin; q < queries.end; ++q)
      if (const auto list = of(t.batch, t.head, q); !list.empty())
        visited = hull(visited, {list.front(), list.back() + 1});
    return visited;
  }
};

/// The mask that drops the indices after the end of a list.
inline auto within_list(const GatheredTokens& tokens) {
  return keep_ranges([kv = tokens.kv, heads = tokens.heads_of_list](const Position& p) {
    const Index* const begin = kv.begins + p.batch * kv.of_batch + p.head / heads * kv.of_head;
    return Range{0, begin[1] - begin[0]};
  });
}

/// Gathers the keys of each query's list, or of the list that all queries share; see GatheredMask. The entries are rows
/// of keys.
class ListGathering {
 public:
  explicit ListGathering(const KeyLists& lists) : lists_(&lists) {}
  ListGathering(const ListGathering&) = delete;

  bool pays(const Problem& call) const {
    // Queries with their own lists are computed one by one.
    return costs_less(call, lists_->rows == 1 || call.q_len == 1 ? 2 : 4);
  }
  /// Whether gathering pays off in the backward pass, in which weights are gathered too. Keys that all queries share
  /// are not gathered there.
  bool pays_backward(const Problem& call) const { return lists_->rows == call.q_len && costs_less(call, 8); }

  const KeyLists& lists() const { return *lists_; }
  /// Returns the number of query heads that share a list of keys.
  Index heads_of_list(const Problem& call) const { return detail::heads_of_list(lists_->heads, call); }
  /// Returns all queries of a batch element with their lists, each query as a sequence.
  GatheredTokens tokens(const Problem& call, Index batch) const {
    GatheredTokens tokens;
    tokens.batch = batch;
    tokens.rows_of_sequence = 1;
    tokens.q_offset = call.first_query(batch);
    tokens.kv = {.rows = lists_->indices.data(),
                 .of_batch = lists_->rows == 1 ? 0 : 1,
                 .of_head = lists_->heads == 1 ? 0 : lists_->rows,
                 .begins = lists_->offsets.data() + lists_->number(batch, 0, 0)};
    tokens.kv_offset = call.kv_offset;
    tokens.heads_of_list = heads_of_list(call);
    return tokens;
  }
  /// Returns the inverse of the lists, built on first use, for the backward pass.
  const QueriesByKey& by_key() const {
    // A lock, because std::call_once exports a symbol of its function even from libraries with hidden symbols.
    const Lock lock(by_key_mutex_);
    if (!by_key_) by_key_.emplace(*lists_);
    return *by_key_;
  }

  template <class Visit>
  void for_each(const Problem& call, const Visit& visit) const {
    const bool shared = lists_->rows == 1;
    // Query heads that share a key head but not a list are processed in turn.
    const Index turns = lists_->heads == call.heads ? call.heads / call.kv_heads : 1;
    const Index step = call.interleaved_heads ? 1 : turns;  // from a head of a turn to the next
    Problem problem = call;
    problem.q_offsets = {};
    problem.q_offset = problem.kv_offset = 0;
    problem.batch = shared ? 1 : call.q_len;
    problem.q_len = shared ? call.q_len : 1;
    problem.kv_len = lists_->longest;
    problem.heads = call.heads / turns;
    const Index first = call.sequence.value_or(0), end = call.sequence ? first + 1 : call.batch;
    for (Index batch = first; batch < end; ++batch)
      for (Index turn = 0; turn < turns; ++turn) {
        GatheredTokens tokens = this->tokens(call, batch);
        tokens.rows_of_sequence = problem.q_len;
        tokens.first_head = turns > 1 ? call.head_of(0, turn) : 0;
        tokens.head_step = step;
        tokens.kv.begins += tokens.first_head * lists_->rows;
        tokens.kv.of_head *= step;
        visit(tokens, within_list(tokens), problem);
      }
  }

 private:
  /// Whether gathering saves work if a listed pair costs `cost` times as much as a pair in a call without lists. The
  /// cost of a query is proportional to the length of its own list, so the average length decides.
  bool costs_less(const Problem& call, Index cost) const {
    const double entries = static_cast<double>(lists_->offsets.back()),
                 pairs = static_cast<double>(lists_->count()) * static_cast<double>(call.kv_len);
    return call.q_len > 0 && call.kv_len > 0 && static_cast<double>(cost) * entries <= pairs;
  }

  const KeyLists* lists_;
  mutable Mutex by_key_mutex_;
  mutable std::optional<QueriesByKey> by_key_;
};

}  // namespace attn::detail
